//! What is wished of the upstream: how urgently, and for whom.

use crate::identify::Client;

/// How urgent a request is: what there is of the budget goes to the more urgent
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// What the tip is. It needs no place among the requests under way, and a
    /// share of the budget is kept for it.
    Probe,
    /// What a client waits for and nothing else can answer.
    Miss,
    /// Whether something stored, which may stand in, still holds.
    Revalidation,
    /// What may be asked for. It does not wait, and leaves half of the budget.
    LookAhead,
}

impl Priority {
    /// All, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Probe, Self::Miss, Self::Revalidation, Self::LookAhead];

    /// Its place among them.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its word in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Miss => "miss",
            Self::Revalidation => "revalidation",
            Self::LookAhead => "look-ahead",
        }
    }
}

/// A wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestPriority {
    /// How urgent it is.
    pub priority: Priority,
    /// Whose turn it takes; `None` for ordgate's own.
    pub client: Option<Client>,
}

impl RequestPriority {
    /// One of ordgate's own.
    pub const fn own(priority: Priority) -> Self {
        Self {
            priority,
            client: None,
        }
    }

    /// A client's.
    pub const fn of(caller: Client, priority: Priority) -> Self {
        Self {
            priority,
            client: Some(caller),
        }
    }
}

impl From<Priority> for RequestPriority {
    fn from(priority: Priority) -> Self {
        Self::own(priority)
    }
}
