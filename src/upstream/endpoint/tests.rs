//! Admission at an endpoint whose server accepts a limited number of requests.

use std::num::NonZeroU32;

use super::*;
use crate::upstream::connection::{Connection, SendPath};

fn endpoint() -> Arc<Endpoint> {
    let number = |n| NonZeroU32::new(n).unwrap();
    let settings = breaker::Settings {
        enabled: true,
        failures: number(10),
        share: number(80),
        window: Duration::from_secs(30),
        pause: Duration::from_secs(1),
        max_pause: Duration::from_secs(60),
    };
    let (least, most) = (4, 32);
    let (clock, url) = (Clock::manual(), Uri::from_static("http://server"));
    let queue = AdmissionQueue::new(64, clock.clone());
    Endpoint::new(url, settings, InFlight { least, most }, queue, clock)
}

/// Sends a request of this priority, if it is admitted.
fn send(endpoint: &Arc<Endpoint>, priority: Priority) -> Result<EndpointPermit, Denied> {
    let mut permit = endpoint.admit(priority)?;
    permit.send(SendPath::known(Connection::default()));
    Ok(permit)
}

#[test]
fn a_probe_takes_a_slot_if_a_cap_is_known() {
    let endpoint = endpoint();
    let first = send(&endpoint, Priority::Miss).unwrap();
    let probe = send(&endpoint, Priority::Probe).unwrap();
    assert_eq!(endpoint.in_flight(), 1, "it needs no slot");
    drop(probe.end(None));
    let mut second = send(&endpoint, Priority::Miss).unwrap();
    let failure = second.weigh(Failure::Terminated, true);
    assert!(matches!(failure, Failure::Excess { .. }), "{failure:?}");
    drop(second.end(Some(&failure)));
    // The server accepts one request.
    let denied = send(&endpoint, Priority::Probe).err();
    assert_eq!(denied, Some(Denied::NoSlot));
    drop(first.end(None));
    let probe = send(&endpoint, Priority::Probe).unwrap();
    assert_eq!(endpoint.in_flight(), 1);
    assert!(send(&endpoint, Priority::Miss).is_err());
    drop(probe.end(None));
    assert_eq!(endpoint.in_flight(), 0);
    assert!(send(&endpoint, Priority::Miss).is_ok());
}
