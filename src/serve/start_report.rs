//! The line that the log begins with.

use super::Server;
use crate::build;

impl Server {
    /// Logs what serves: the version, the configuration, and what it leads to. Nothing of
    /// it is secret.
    pub fn report_start(&self, config: &str) {
        let gateway = &self.first;
        let routes = gateway.routes.routes().iter();
        let routes: Vec<_> = routes.map(|route| &*route.name).collect();
        let upstreams = gateway.upstreams.iter().map(|(_, upstream)| {
            let endpoints = upstream.endpoint_snapshots().into_iter();
            let urls: Vec<_> = endpoints
                .map(|endpoint| endpoint.name.to_string())
                .collect();
            format!("{}: {}", upstream.name(), urls.join(" "))
        });
        let listeners: Vec<_> = self.listeners().iter().map(ToString::to_string).collect();
        tracing::info!(
            version = build::VERSION,
            commit = build::COMMIT,
            config,
            listen = listeners.join(", "),
            admin = %self.admin,
            routes = routes.join(", "),
            upstreams = upstreams.collect::<Vec<_>>().join(", "),
            state_directory = gateway.state.answers.is_on(),
            shared_engine = gateway.fill.lower.has_engine(),
            replicas = gateway.fill.lower.shared.as_ref().map_or(1, |shared| shared.replicas()),
            "ordgate has started"
        );
    }
}
