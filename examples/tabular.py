"""Tables, the scikit-learn way: a Pipeline, cross-validated; cross-entropy beside GenCE, everything else equal.

Run: python examples/tabular.py
"""

from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gence.integrations import GenCEClassifier


def main() -> None:
    # Train on a tenth of the rows and test on the rest: 10 folds, with training and test rows exchanged.
    folds = StratifiedKFold(n_splits=10, shuffle=True, random_state=0)
    results = []
    for name, load in (("wine", load_wine), ("breast cancer", load_breast_cancer)):
        X, y = load(return_X_y=True)
        few_rows = [(test, training) for training, test in folds.split(X, y)]
        for loss in ("ce", "gence"):
            model = make_pipeline(StandardScaler(), GenCEClassifier(loss=loss, random_state=0))
            scores = cross_validate(model, X, y, cv=few_rows, scoring=["accuracy", "neg_log_loss"])
            accuracy, log_loss = scores["test_accuracy"].mean(), -scores["test_neg_log_loss"].mean()
            results.append(f"{name}, {loss}: accuracy {accuracy:.3f}, log loss {log_loss:.3f}")
    print("; ".join(results))


if __name__ == "__main__":
    main()
