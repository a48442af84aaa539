//! The rules that make every purge reach every replica, each with a name, so that the
//! proof can leave one out and show what happens. The product has them all.

pub(crate) use crate::shared::left_out::has;
#[cfg(test)]
pub(crate) use crate::shared::left_out::leave_out;

/// A rule of the journal. Those that are only in the script are not in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JournalRule {
    /// J1: another run id or replication id of the engine begins a new generation.
    #[cfg(test)]
    LifeOfEngine,
    /// J2: so does an engine that has fewer records than a process has applied, or other
    /// ones.
    #[cfg(test)]
    LostRecordsBeginAnew,
    /// J3: the records of a process are kept until it has read them in the journal, not
    /// only until a sync request was answered.
    KeptUntilRead,
    /// J4: in a new generation, all remembered purges are sent again.
    SentAgain,
    /// J5: a new generation is read from its beginning.
    ReadFromBeginning,
    /// J6: a process for which records were trimmed purges everything.
    GapPurgesEverything,
    /// J7: so does one that was out of sync for so long that others may have forgotten
    /// what they would have to send again.
    AbsencePurgesEverything,
    /// J8: how far others have applied an earlier generation says nothing about this one.
    AppliedInGeneration,
    /// J9: a process that has not followed the journal before applies all that is in it: it
    /// may have fetched something before.
    FirstContactApplies,
    /// J10: a process purges everything if one that it knew before does not come to the new
    /// generation: only that one may remember what it has purged last.
    MissingPurgesEverything,
}
