"""The paper's experiments, carried out and drawn."""

NAMES = ("fig1", "fig2", "fig3", "fig4", "participation")  # one module each; the order of the report
