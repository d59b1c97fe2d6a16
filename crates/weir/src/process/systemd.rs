//! What systemd is told, and the sockets it opens for the gateway. Without systemd nothing here does anything.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use listenfd::ListenFd;
pub(crate) use sd_notify::NotifyState;
use tokio::sync::RwLock;
use tokio::time::{MissedTickBehavior, interval};
use weir_config::settings::{Endpoint, Listen, ListenAddr};
use weir_proxy::DataPlane;

use crate::process::handover::Passed;
use crate::process::inherited::address;

/// Variables that are meant for one process and not for its successor.
pub(crate) const OF_ONE_PROCESS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// Whether whoever started this process waits to be told.
pub(crate) fn listens() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells systemd.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told (NOTIFY_SOCKET)");
    }
}

/// Tells systemd that a reload begins; [`NotifyState::Ready`] tells its end.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "systemd cannot be told of the reload"),
    }
}

/// Tells systemd twice in each interval of the unit's `WatchdogSec=` that all workers move, for ever. While one is stuck
/// nothing is told, so that systemd starts the gateway anew.
pub(crate) async fn watchdog(data_plane: Arc<RwLock<DataPlane>>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = interval((limit / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match data_plane.read().await.moves(limit / 2) {
            Ok(()) => notify(&[NotifyState::Watchdog]),
            Err(worker) => tracing::error!(worker, "a worker is stuck; systemd is not told to wait (WatchdogSec=)"),
        }
    }
}

/// The sockets that systemd has opened (`LISTEN_FDS`). `FileDescriptorName=` of the socket unit says what for: `http`,
/// `https`, `metrics` or `status`; without it a socket is for traffic.
pub(crate) fn activated() -> anyhow::Result<Vec<Passed>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = ListenFd::from_env();
    let mut found = Vec::new();
    for number in 0..sockets.len() {
        let name = names.next().unwrap_or_default();
        let setting = match name {
            "http" | "" | "unknown" => "listen.http",
            "https" => "listen.https",
            "metrics" => "listen.metrics",
            "status" => "listen.status",
            _ if name.ends_with(".socket") => "listen.http",
            _ => {
                bail!("systemd passes a socket called `{name}`; FileDescriptorName= has to be http, metrics or status")
            }
        };
        let socket = take(&mut sockets, number).with_context(|| {
            format!("systemd passes a socket called `{name}` that takes no connections (ListenStream= is needed, and Accept=no)")
        })?;
        let asked = address(&socket).context("systemd passes a socket without an address")?.to_string();
        found.push(Passed { setting: setting.to_owned(), asked, activated: true, socket });
    }
    Ok(found)
}

/// A socket for TCP connections or a Unix socket.
fn take(sockets: &mut ListenFd, number: usize) -> io::Result<OwnedFd> {
    let tcp = sockets.take_tcp_listener(number);
    let socket = match tcp {
        Ok(socket) => socket.map(OwnedFd::from),
        Err(_) => sockets.take_unix_listener(number)?.map(OwnedFd::from),
    };
    match socket {
        Some(socket) if rustix::net::sockopt::socket_acceptconn(&socket)? => Ok(socket),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Puts the addresses of sockets that systemd opened into the place of those in the settings. What else the settings
/// say about an address stays so.
pub(crate) fn replace(listen: &mut Listen, sockets: &[Passed]) -> anyhow::Result<()> {
    let addresses = |setting: &str| {
        let own = sockets.iter().filter(|passed| passed.activated && passed.setting == setting);
        let mut found = Vec::new();
        for address in own.filter_map(|passed| address(&passed.socket)) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    };
    for (setting, list) in [("listen.http", &mut listen.http), ("listen.https", &mut listen.https)] {
        let found = addresses(setting);
        if !found.is_empty() {
            let same = |address| list.iter().find(|listener| listener.address == address).cloned();
            *list = found.into_iter().map(|address| same(address.clone()).unwrap_or(address.into())).collect();
        }
    }
    for (setting, endpoint) in [("listen.metrics", &mut listen.metrics), ("listen.status", &mut listen.status)] {
        match addresses(setting).as_slice() {
            [] => {}
            [ListenAddr::Tcp(one)] => *endpoint = Endpoint::On(*one),
            _ => bail!("{setting} takes one address, so systemd has to pass one socket for it, for TCP"),
        }
    }
    Ok(())
}
