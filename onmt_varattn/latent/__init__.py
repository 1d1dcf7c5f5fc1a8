"""Latent alignment for PyTorch models; it needs neither OpenNMT-py nor text.

Letters in the shapes of tensors, in this package and those built on it:

    N  sentences              S  source positions      D  decoder state (query) size
    Q  queries per sentence   K  candidates per query  M  memory size, one vector per source position
    R  rows: real target positions of a batch          A  attention size
    T  target positions       V  vocabulary
"""

from onmt_varattn.latent.attention import Inference, LatentAttention, Outcome
from onmt_varattn.latent.baselines import BASELINES, AverageBaseline, Baseline, LearnedBaseline, SoftBaseline
from onmt_varattn.latent.distributions import (
    RELAXED,
    Categorical,
    Concrete,
    Dirichlet,
    LogisticNormal,
    Refinement,
    SimplexDistribution,
    Sparse,
)
from onmt_varattn.latent.estimators import ESTIMATORS, Estimate, Estimator, EstimatorSettings
from onmt_varattn.latent.likelihood import Candidates, Emitter, Marginals, OutputLayer, log_likelihood
from onmt_varattn.latent.mixtures import Exact, KMax, Mixture, Samples, SoftContext
from onmt_varattn.latent.objectives import OBJECTIVES, Objective, Schedule, ScheduledObjective
from onmt_varattn.latent.positions import Memory, Positions, mutual_information
from onmt_varattn.latent.readout import READOUTS, AdditiveReadout, Readout, ResidualReadout
from onmt_varattn.latent.scores import SCORES, Score

__all__ = [
    "BASELINES",
    "ESTIMATORS",
    "OBJECTIVES",
    "READOUTS",
    "RELAXED",
    "SCORES",
    "AdditiveReadout",
    "AverageBaseline",
    "Baseline",
    "Candidates",
    "Categorical",
    "Concrete",
    "Dirichlet",
    "Emitter",
    "Estimate",
    "Estimator",
    "EstimatorSettings",
    "Exact",
    "Inference",
    "KMax",
    "LatentAttention",
    "LearnedBaseline",
    "LogisticNormal",
    "Marginals",
    "Memory",
    "Mixture",
    "Objective",
    "Outcome",
    "OutputLayer",
    "Positions",
    "Readout",
    "Refinement",
    "ResidualReadout",
    "Samples",
    "Schedule",
    "ScheduledObjective",
    "Score",
    "SimplexDistribution",
    "SoftBaseline",
    "SoftContext",
    "Sparse",
    "log_likelihood",
    "mutual_information",
]
