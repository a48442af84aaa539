//! Stored responses of modes `chain` and `override` as they are kept, and back.
//!
//! What clients see is made anew: the fields of a chain response follow from what is
//! known of the chain when it is restored.

use http::StatusCode;

use super::codec::{KeptResponse, KeptStamp};
use crate::cache::encodings::Encodings;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::{Attached, StoredResponse};
use crate::chain::finality::Class;
use crate::chain::ledger::Epoch;
use crate::chain::{Chain, ChainStamp, TipNumber};
use crate::clock::Moment;
use crate::pages::Page;

/// The chain stamp of a response that is restored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestoredStamp {
    /// Its tip here.
    pub(crate) tip: TipNumber,
    /// Its class here.
    pub(crate) class: Class,
    /// The epoch here in which it was valid.
    pub(crate) epoch: Epoch,
    /// The heights that it names.
    pub(crate) heights: Option<(u32, u32)>,
}

/// When a response is restored, and by what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restoring {
    /// When the response was received, by the clock of this process.
    pub(crate) received: Moment,
    /// The present.
    pub(crate) now: Moment,
    /// The purges that it is checked against.
    pub(crate) sequence: PurgeSequence,
}

impl KeptResponse {
    /// A response as it is kept, with the time and the stamp as whoever keeps it has them.
    pub(crate) fn of(stored: &StoredResponse, received: u64, stamp: Option<KeptStamp>) -> Self {
        Self {
            status: stored.status,
            content_type: stored.metadata.content_type.clone(),
            client_freshness: stored.metadata.client_freshness,
            etag: stored.etag.clone(),
            received,
            lifetime: stored.lifetime,
            took: stored.took,
            is_encodable: stored.encodings.are_allowed(),
            stamp,
            body: stored.body.clone(),
        }
    }

    /// The response of a route in mode `override`.
    pub(crate) fn restore_timed(self, at: Restoring) -> StoredResponse {
        let freshness = self.client_freshness;
        self.stored(freshness, Attached::default(), at)
    }

    /// The response of a route in mode `chain`.
    pub(crate) fn restore_of_chain(
        mut self,
        chain: &Chain,
        stamp: RestoredStamp,
        at: Restoring,
    ) -> StoredResponse {
        let RestoredStamp {
            tip,
            class,
            epoch,
            heights,
        } = stamp;
        self.lifetime = self.lifetime.min(chain.finality().lifetime(class));
        let lifetime = chain.client_lifetime(class, tip, at.now);
        let page = match self.status == StatusCode::OK {
            true => Page::read(&self.body),
            false => None,
        };
        let stamp = ChainStamp::new(class, tip, heights, epoch);
        let attached = Attached {
            stamp: Some(stamp.with_client_lifetime(lifetime)),
            page,
        };
        self.stored(ClientFreshness::of_class(class, lifetime), attached, at)
    }

    fn stored(
        self,
        freshness: ClientFreshness,
        attached: Attached,
        at: Restoring,
    ) -> StoredResponse {
        StoredResponse {
            status: self.status,
            etag: self.etag,
            metadata: Metadata::of(self.content_type, freshness),
            received: at.received,
            lifetime: self.lifetime,
            took: self.took,
            body: self.body,
            encodings: Encodings::allowed(self.is_encodable),
            checked: CheckedSequence::at(at.sequence.purge()),
            attached,
        }
    }
}
