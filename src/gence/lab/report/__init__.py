"""Records in; tables, figures, findings and one HTML page out. Nothing is trained here."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.report.choice import Choice, choose, recommendation, recommended_loss
    from gence.lab.report.figures import INK, PAPER, as_svg, figure_style, inlined
    from gence.lab.report.frame import Setting, load_rows, ood_sets, settings
    from gence.lab.report.page import Report, build_report, make_folder, notebook_html, write_report
    from gence.lab.report.rows import train_command
    from gence.lab.report.style import MAIN, Mark, auroc_of, colour_variables, loss_order, loss_title, marks_for
    from gence.lab.report.tables import Cell, Row, Table, loss_table, markdown_table
    from gence.lab.report.trust import SHORT, calibration_table
    from gence.lab.report.verdict import enumerated, judge
    from gence.lab.report.warnings import data_concerns, image_concerns, tuning_concerns, unfinished_concerns

__getattr__, __dir__, __all__ = front_door(__name__)
