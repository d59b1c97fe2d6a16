//! Registries of services: asked on threads that may block, and by the resolver of the control thread. Every answer goes
//! to `weir_proxy::Services`, and the last good one stays there while a registry is away.

mod asker;
mod consul;
mod dump;
mod eureka;
mod http;
mod kubernetes;
mod nacos;
pub(crate) mod pages;

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::task::JoinSet;
use weir_config::Settings;
use weir_config::{NodeAddr, NodeHost};
use weir_proxy::Compiler;

use asker::Asker;

/// Starts asking the registries that the settings name.
///
/// # Errors
/// A setting cannot be used, or a thread not be started.
pub(crate) fn start(settings: &Settings, compiler: &Compiler, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
    let (discovery, services) = (&settings.discovery, compiler.services());
    let trusted = &settings.tls.trusted_certificate;
    if let Some(dns) = compiler.dns_services(&settings.dns, discovery).map_err(anyhow::Error::msg)? {
        tasks.spawn(dns.run());
    }
    consul::start(&discovery.consul, services, trusted)?;
    consul::start_kv(&discovery.consul_kv, services, trusted)?;
    if !discovery.nacos.host.is_empty() {
        tasks.spawn(nacos::start(&discovery.nacos, services, trusted)?);
    }
    if !discovery.eureka.host.is_empty() {
        let asker = Asker::new(trusted, &discovery.eureka.timeout);
        let (conf, services) = (discovery.eureka.clone(), Arc::clone(services));
        spawn("weir-eureka", move || eureka::follow(&conf, &services, &asker))?;
    }
    tasks.spawn(http::follow(Arc::clone(services), trusted.clone()));
    for cluster in &discovery.kubernetes {
        kubernetes::start(cluster, services, trusted)?;
    }
    Ok(())
}

/// Starts a thread that asks a registry, and ends with the process.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// A node as a registry tells of it; `None` for a host that is none, which is logged.
fn node(host: &str, port: u16, weight: u32) -> Option<NodeAddr> {
    // Registries write addresses of IPv6 without brackets.
    let bracketed = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() };
    match NodeHost::new(&bracketed) {
        Ok(NodeHost::Unix(_)) | Err(_) => {
            tracing::warn!(host, port, "a registry reports a node whose host is none; it is left out");
            None
        }
        Ok(host) => Some(NodeAddr { host, port, weight, priority: 0 }),
    }
}
