"""The paper's tables of translation."""

from onmt_varattn.nmt.text.scores import NAMES
from onmt_varattn.reproduction import tables
from onmt_varattn.reproduction.recipe import Paper
from onmt_varattn.reproduction.tables import Column, Results, Table, Value, in_mode, value

K = 5  # of the paper's K-max table


def _scores(mode: str = "natural") -> dict[str, Column]:
    """Columns of BLEU, chrF and TER; evaluations before version 0.2 have BLEU only."""
    return {name: Column(in_mode(key, mode), 1, optional=key != "bleu") for key, name in NAMES.items()}


PPL, REPORTED = {"PPL": Column(in_mode("ppl"))}, {"PPL": "ppl", "BLEU": "bleu"}


def table_1(results: Results, paper: Paper) -> Table:
    """Objectives and expectations; rows of a recipe that the paper does not have come last."""
    rows = [*paper.tables[1], *paper.unlisted(results)]
    title = "Table 1: objective and expectation"
    return tables.build(
        "table1",
        title,
        results,
        paper,
        rows,
        {**PPL, **_scores()},
        labels=tables.LABELS,
        reported=REPORTED,
    )


def table_2(results: Results, paper: Paper) -> Table:
    """All alignments against the K most probable ones."""
    columns = {**PPL, f"PPL K={K}": Column(in_mode("ppl", f"kmax{K}"))}
    own, kmax = _scores(), _scores(f"kmax{K}")
    for heading in own:
        columns |= {heading: own[heading], f"{heading} K={K}": kmax[heading]}
    return tables.build(
        "table2",
        f"Table 2: exact (soft for soft attention) against the {K} most probable alignments",
        results,
        paper,
        paper.tables[2],
        columns,
        reported={"PPL": "ppl", f"PPL K={K}": f"ppl_kmax{K}", "BLEU": "bleu", f"BLEU K={K}": f"bleu_kmax{K}"},
    )


def table_3(results: Results, paper: Paper) -> Table:
    """Ways of training the posterior."""
    bounds = {"ELBO per token": Column(value("elbo"), 3), "KL per token": Column(value("kl"), 3)}
    return tables.build(
        "table3",
        "Table 3: inference alternatives for variational attention",
        results,
        paper,
        paper.tables[3],
        {**PPL, **_scores(), **bounds},
        labels=("objective", "expectation"),
        reported=REPORTED,
    )


def entropy_table(results: Results, paper: Paper) -> Table:
    """Entropies of alignments."""
    rows = [*paper.entropies, *(row for row in paper.tables[3] if row not in paper.entropies)]
    return tables.entropies("target token", results, paper, rows)


def kmax_table(results: Results, paper: Paper) -> Table:
    """Perplexity against K: the numbers of the plot, without models that cannot be enumerated."""
    rows = [row for row, runs in results.items() if runs and in_mode("ppl", "exact")(runs[0]) is not None]
    title = "Perplexity when the K most probable alignments are mixed"
    return tables.against_k("kmax", title, "ppl", results, paper, rows)


def alignment_table(results: Results, paper: Paper) -> Table:
    """Alignment error rates in percent, where gold alignments are known."""
    kinds = {"prior": "prior", "posterior": "posterior", "exact posterior": "exact"}
    return tables.build(
        "alignments",
        "Alignment error rate in percent: each word's most probable source word against gold",
        results,
        paper,
        list(results),
        {heading: Column(_error_rate(kind), 1) for heading, kind in kinds.items()},
    )


def _error_rate(kind: str) -> Value:
    return lambda result: result["alignment_error_rate"].get(kind)
