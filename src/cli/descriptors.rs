//! The limit of open files, and the limit of connections that fits it.

use ordgate::config::Config;

/// Raises the limit of open files as far as the system allows, and lowers the limit of
/// connections to fit it. Returns a warning where it has done so.
pub(super) fn fit_connections(config: &mut Config) -> Option<String> {
    /// Descriptors for the upstream's resolver, the listeners, files and the
    /// allocator.
    const SPARE: u64 = 256;
    let allowed = raise_descriptors()?;
    let upstreams = config.upstreams.iter();
    let slots = upstreams.map(|one| u64::from(one.max_in_flight.get()));
    let fit = allowed.saturating_sub(SPARE + slots.sum::<u64>()).max(1);
    let most = &mut config.connections.bounds.connections;
    let wanted = *most;
    *most = wanted.min(fit);
    (wanted > fit).then(|| format!(
        "the limit of open files, {allowed}, allows {fit} connections instead of {wanted}; raise it (ulimit -n) for more"
    ))
}

/// Raises the soft limit of open files to the hard one, and returns it; `None` is no
/// limit.
pub(super) fn raise_descriptors() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_kept_as_it_is) => limit.current,
    }
}
