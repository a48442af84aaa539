//! The rules that keep the sum of all allowances within the budget, each with a name, so
//! that the proof can leave one out and show what happens. The product has them all.

pub(crate) use crate::shared::left_out::has;
#[cfg(test)]
pub(crate) use crate::shared::left_out::leave_out;

/// A rule of the allowances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// R1: a lower allowance applies here before it is reported.
    LowerFirst,
    /// R2: a report is never below what the windows still count.
    ReportWhatCounts,
    /// R3: a report older than the last one is rejected.
    SequenceNumbers,
    /// R4: a lease is timed from before its report was sent.
    LeaseFromSend,
    /// R5: the lease is checked when a request is taken, not by a timer.
    LeaseCheckedAtTake,
    /// R6: the row of a silent process stays for Q.
    SilentRowsStay,
    /// R7: a row is removed only if its process has not reported since.
    RemovalComparesSequence,
    /// R8: another run id or replication id begins a new generation.
    LifeOfEngine,
    /// R9: nothing is raised by a process that has followed a generation for less than Q.
    FollowBeforeRaise,
    /// R10: a new process waits until its predecessor's requests have left the window,
    /// unless it knows them.
    PredecessorCounts,
    /// R11: nothing is raised by an engine that most of its copies have left.
    MajorityRaises,
    /// R12: a permit that was not used at once is given back.
    PermitsAge,
    /// R13: the floors of all configured replicas are reserved, seen or not.
    FloorsReserved,
    /// R14: if more processes than configured are seen, the floors of all are reserved.
    FloorsOfAllSeen,
    /// R15: what a process holds is accepted by a new generation.
    ClaimsAccepted,
    /// R16: Q includes the longest time that a request can be in flight.
    LongestRequestInQ,
    /// R17: a process that the engine has not answered for longer than `GAP` begins to
    /// follow anew.
    GapEndsFollowing,
    /// R18: leases and Q are timed by a clock that runs while the machine is suspended.
    ClockRunsInSuspend,
    /// R19: no lease is extended by an engine that most of its copies have left.
    MajorityExtends,
    /// R20: a promoted copy knows how many copies the earlier primary had.
    CopiesInherited,
    /// R21: the replication id counts as part of the engine's life, since a primary that
    /// was a copy for a moment keeps its run id.
    ReplicationId,
    /// R22: a claim reserves what the windows count, but only what was held before may
    /// be used for new requests. After a suspension, the windows may count requests that
    /// ended long ago, and others may use what was reserved for them.
    ClaimsRaiseNothing,
    /// R23: processes remember how many copies the engine had, since an engine that has
    /// lost its rows does not know it.
    CopiesRemembered,
}
