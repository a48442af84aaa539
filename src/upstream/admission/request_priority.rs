//! How urgent an upstream request is, and which client it is for.

use crate::identify::Client;

/// How urgent a request is. Probes come first; among the requests of one client,
/// more urgent ones get slots and budget first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A probe of a chain tip. It needs no slot, and a share of the budget is
    /// reserved for probes.
    Probe,
    /// A cache miss: a client waits for the answer.
    Miss,
    /// Revalidation of a stored response that can be served meanwhile.
    Revalidation,
    /// A speculative request. It never waits, and leaves half of the budget.
    LookAhead,
}

impl Priority {
    /// All priorities, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Probe, Self::Miss, Self::Revalidation, Self::LookAhead];

    /// Its index in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Miss => "miss",
            Self::Revalidation => "revalidation",
            Self::LookAhead => "look-ahead",
        }
    }
}

/// The priority of an upstream request, and the client it is accounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestPriority {
    /// How urgent the request is.
    pub priority: Priority,
    /// The client; `None` for a request of ordgate's own.
    pub client: Option<Client>,
}

impl RequestPriority {
    /// A request of ordgate's own.
    pub const fn own(priority: Priority) -> Self {
        Self {
            priority,
            client: None,
        }
    }

    /// A request for a client.
    pub const fn of(client: Client, priority: Priority) -> Self {
        Self {
            priority,
            client: Some(client),
        }
    }
}

impl From<Priority> for RequestPriority {
    fn from(priority: Priority) -> Self {
        Self::own(priority)
    }
}
