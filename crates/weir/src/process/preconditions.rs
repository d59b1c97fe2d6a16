//! Reasons that keep `weir run` from starting, as far as they are known without opening a socket, for `weir check`.

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use weir_config::Settings;
use weir_config::settings::{AccessLogPath, Endpoint, ErrorLogPath, ListenAddr};

use crate::commands::run::LogSettings;
use crate::failure::Failure;
use crate::process::{log_file, threescale};
use crate::servers::admin::AdminSetup;
use crate::stored::etcd;

/// Findings about the settings of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Preconditions {
    /// Reasons why the gateway would not start.
    pub(crate) failures: Vec<Failure>,
    /// Settings that have no effect.
    pub(crate) doubts: Vec<String>,
}

impl Preconditions {
    /// Checks all settings, also after a failure.
    pub(crate) fn of(settings: &mut Settings, has_file: bool) -> Self {
        let mut found = Self::default();
        match etcd::settle(settings, has_file) {
            Ok(doubts) => found.doubts = doubts,
            Err(failure) => found.failures.push(failure),
        }
        if let ErrorLogPath::File(path) = &settings.error_log.path {
            found.add(log_file::check(path).with_context(|| format!("cannot open the error log {}", path.display())));
        }
        for log in [LogSettings::of_requests(settings), LogSettings::of_streams(settings)] {
            if let AccessLogPath::File(path) = log.path {
                found.add(
                    log_file::check(path).with_context(|| format!("cannot open the access log {}", path.display())),
                );
            }
            if *log.path != AccessLogPath::Off {
                found.doubts.extend(log.format().1);
            }
        }
        found.add(AdminSetup::check(settings));
        found.add(threescale::check(settings));
        found.addresses(settings);
        found
    }

    fn add(&mut self, outcome: anyhow::Result<()>) {
        self.failures.extend(outcome.err().map(Failure::Other));
    }

    /// Finds addresses that two listeners use, and Unix sockets without a folder.
    fn addresses(&mut self, settings: &Settings) {
        let listen = &settings.listen;
        let traffic = [("listen.http", &listen.http), ("listen.https", &listen.https), ("listen.tcp", &listen.tcp)];
        let traffic = traffic.into_iter().flat_map(|(name, list)| list.iter().map(move |one| (name, &one.address)));
        let mut tcp: Vec<(&str, SocketAddr, bool)> = Vec::new();
        let mut unix = Vec::new();
        let mut udp = Vec::new();
        for address in listen.udp.iter().filter_map(|listener| listener.address.tcp()) {
            self.taken(&mut udp, "listen.udp", address, true);
        }
        for (name, address) in traffic {
            match address {
                ListenAddr::Tcp(address) => self.taken(&mut tcp, name, *address, true),
                ListenAddr::Unix(path) => {
                    if unix.contains(&path) {
                        self.add(Err(anyhow!("{name}: cannot listen on {address}: another setting uses this address")));
                    }
                    if path.parent().is_some_and(|folder| !folder.is_dir()) {
                        self.add(Err(anyhow!("{name}: cannot listen on {address}: the folder does not exist")));
                    }
                    unix.push(path);
                }
            }
        }
        let servers = [
            ("listen.metrics", listen.metrics),
            ("listen.status", listen.status),
            ("listen.admin", listen.admin.unless_given(Endpoint::Off)),
            ("listen.control", listen.control.unless_given(Endpoint::Off)),
            ("listen.threescale_backend", listen.threescale_backend),
        ];
        for (name, endpoint) in servers {
            if let Some(address) = endpoint.addr() {
                self.taken(&mut tcp, name, address, false);
            }
        }
    }

    /// Finds addresses in use twice. Listeners for traffic may cover each other; other servers may not.
    fn taken<'a>(
        &mut self,
        tcp: &mut Vec<(&'a str, SocketAddr, bool)>,
        name: &'a str,
        address: SocketAddr,
        is_traffic: bool,
    ) {
        let collides = |(_, other, other_is_traffic): &&(&str, SocketAddr, bool)| {
            let any = address.ip().is_unspecified() || other.ip().is_unspecified();
            let covers = any && !(is_traffic && *other_is_traffic) && address.is_ipv4() == other.is_ipv4();
            address.port() != 0 && other.port() == address.port() && (address == *other || covers)
        };
        if let Some((by, ..)) = tcp.iter().find(collides) {
            self.add(Err(anyhow!("{name}: cannot listen on {address}: {by} uses this address")));
        }
        tcp.push((name, address, is_traffic));
    }
}
