//! What an upstream request is made for, and how urgent it is.

use crate::identify::Client;
use crate::wire::request_id::RequestId;

/// How urgent a request is. Probes come first; among the requests of one client, more
/// urgent ones get slots and budget first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A probe of a chain tip. It needs no slot, and a part of the budget is kept for probes.
    Probe,
    /// A cache miss: a client waits for the answer.
    Miss,
    /// Revalidation of a stored response that can be served meanwhile.
    Revalidation,
}

impl Priority {
    /// All priorities, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Probe, Self::Miss, Self::Revalidation];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Miss => "miss",
            Self::Revalidation => "revalidation",
        }
    }
}

/// The priority of an upstream request, the client it is accounted to, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestPriority {
    /// How urgent the request is.
    pub priority: Priority,
    /// The client; `None` for a request of ordgate's own.
    pub client: Option<Client>,
    /// The number of the route of what is fetched.
    pub(crate) route: Option<u16>,
    /// What it is sent for, in logs and metrics.
    pub(crate) purpose: &'static str,
    /// The client's request that has caused it.
    pub(crate) request_id: Option<RequestId>,
}

impl RequestPriority {
    /// A request of ordgate's own.
    pub const fn own(priority: Priority) -> Self {
        Self {
            priority,
            client: None,
            route: None,
            purpose: priority.name(),
            request_id: None,
        }
    }

    pub(crate) fn is_probe(&self) -> bool {
        self.priority == Priority::Probe
    }
}
