//! The limit of open files, and the limits of connections that fit it.

use ordgate::config::Config;

/// Raises the limit of open files as far as the system allows, and lowers the limits
/// of connections to fit it. Returns what it has lowered.
pub(super) fn fit_connections(config: &mut Config) -> Vec<String> {
    /// Descriptors for the upstream's resolver, the listeners, files and the
    /// allocator.
    const SPARE: u64 = 256;
    let mut warnings = Vec::new();
    let Some(allowed) = raise_descriptors() else {
        return warnings;
    };
    let upstreams = config.upstreams.iter();
    let slots: u64 = upstreams
        .map(|one| u64::from(one.max_in_flight.get()))
        .sum();
    let most = &mut config.connections.max_connections;
    let fit = allowed.saturating_sub(SPARE + slots).max(1);
    if *most > fit {
        warnings.push(format!(
            "the limit of open files, {allowed}, allows {fit} connections instead of {most}; raise it (ulimit -n) for more"
        ));
        *most = fit;
    }
    // One client must not hold all of what is left.
    if let Some(client) = &mut config.connections.per_client {
        let share = u32::try_from(fit / 4).unwrap_or(u32::MAX).max(1);
        if client.connections > share {
            warnings.push(format!(
                "one client may have {share} connections instead of {}, a quarter of what the limit of open files, {allowed}, allows",
                client.connections
            ));
            client.connections = share;
        }
    }
    warnings
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
