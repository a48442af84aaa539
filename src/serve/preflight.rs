//! Everything of a server's start that can fail without a socket: what `ordgate check`
//! and the start itself refuse.

use std::io;

use http::Uri;

use super::sockets::is_socket;
use super::{LoadedConfig, StartError};
use crate::clock::Clock;
use crate::config::Config;
use crate::listener::ListenAddress;
use crate::supervisor::InheritedSockets;
use crate::tls;
use crate::upstream::Upstreams;

/// Refuses what a server cannot be made from. Opens no socket, and changes nothing on disk.
/// Sockets that the supervisor passes take the place of configured addresses; the start checks
/// the address of one for the admin listener.
///
/// # Errors
/// The first reason, as the start would report it.
pub fn check(
    loaded: &LoadedConfig,
    has_sandbox: bool,
    sockets: &InheritedSockets,
    clock: &Clock,
) -> Result<(), StartError> {
    let config = &loaded.config;
    check_listeners(config, has_sandbox, clock)?;
    if sockets.is_empty() {
        let (admin, token) = (&config.file.admin, loaded.admin_token.as_ref());
        StartError::check_admin(admin.listen, admin, token)?;
        for listener in &config.listeners {
            if let ListenAddress::Unix(path) = &listener.address {
                // A missing directory may be there when the server starts.
                if let Err(error) = is_socket(path)
                    && error.kind() == io::ErrorKind::AlreadyExists
                {
                    let path = path.clone();
                    return Err(StartError::BindUnix { path, error });
                }
            }
        }
    }
    let served = with_sandbox(config, has_sandbox);
    let (keys, budgets) = (&loaded.keys, std::sync::Arc::default());
    Upstreams::new(&served.upstreams, keys, None, &budgets, clock, None)?;
    Ok(())
}

/// The configuration as it is served, but for the sandbox's address, which is known only
/// once it runs.
pub fn with_sandbox(config: &Config, has_sandbox: bool) -> Config {
    let mut served = config.clone();
    if has_sandbox {
        served.use_sandbox(Some(&(
            Uri::from_static("http://127.0.0.1:1"),
            Box::default(),
        )));
    }
    served
}

fn check_listeners(config: &Config, has_sandbox: bool, clock: &Clock) -> Result<(), StartError> {
    let listeners = &config.listeners;
    if listeners.is_empty() {
        return Err(StartError::NoListener);
    }
    let now = clock.wall(clock.now());
    let tls = listeners
        .iter()
        .filter_map(|listener| listener.tls.as_ref());
    let problems: Vec<_> = tls
        .flat_map(|tls| tls::check(tls, has_sandbox, now))
        .collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(StartError::Certificates(problems)),
    }
}
