//! The part of a limit that a request must leave for more urgent requests.

/// The part of a limit that a request must leave unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    Nothing,
    /// Enough for this many tip probes a minute.
    Probes(u32),
    /// The same, and a tenth for clients that have used little of the budget
    /// recently, and for misses of ordgate's own.
    ProbesAndLightClients(u32),
    Half,
}

impl Reserve {
    /// The same reserve for another number of tip probes a minute.
    #[must_use]
    pub(crate) const fn with_probes(self, probes: u32) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Probes(_) => Self::Probes(probes),
            Self::ProbesAndLightClients(_) => Self::ProbesAndLightClients(probes),
            Self::Half => Self::Half,
        }
    }

    /// How many of `limit` requests per minute, or per longer period, must stay
    /// unused. Probes get what they need, but at least a twentieth and at most a
    /// quarter.
    pub(crate) fn of_minute(self, limit: u64) -> u64 {
        match self {
            Self::Nothing | Self::Probes(0) => 0,
            Self::Probes(probes) => u64::from(probes).min(limit / 4).max(limit / 20),
            Self::ProbesAndLightClients(probes) => {
                Self::Probes(probes).of_minute(limit) + limit / 10
            }
            Self::Half => limit / 2,
        }
    }

    /// How many of `limit` requests per second must stay unused. Probes are sent
    /// one at a time, so a twentieth is enough for them.
    pub(crate) fn of_second(self, limit: u64) -> u64 {
        match self {
            Self::Nothing | Self::Probes(0) => 0,
            Self::Probes(_) => limit / 20,
            Self::ProbesAndLightClients(probes) => {
                Self::Probes(probes).of_second(limit) + limit / 10
            }
            Self::Half => limit / 2,
        }
    }

    /// The index of the pace that applies to a request with this reserve; `None`
    /// where the budget does not pace it.
    pub(super) const fn pace(self) -> Option<usize> {
        match self {
            Self::Probes(_) => Some(0),
            Self::ProbesAndLightClients(_) => Some(1),
            Self::Nothing | Self::Half => None,
        }
    }
}
