//! Resources from an etcd shared by many gateways: settings, first read, and metrics.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tokio::time::sleep;
use weir_config::settings::{self, AutoEndpoint, ConfigProvider, Deployment, Endpoint, EtcdTls, Listen, Role};
use weir_config::{Settings, file};
use weir_store::{Etcd, EtcdHealth, EtcdOptions, Keyring, Kind, Listing, Sealing, Served, Store, StoreError};
use weir_telemetry::metrics::{EtcdStatus, StoreStatus};

use crate::failure::Failure;
use crate::servers::admin::ADMIN;
use crate::servers::control::CONTROL;
use crate::source::resources::Resources;
use crate::source::secrets::SecretFields;
use crate::stored::live::Withheld;

/// Checks the settings of `deployment` against each other and all others, and turns off the listeners that the role does
/// not have. Returns the settings that have no effect, because a `config.yaml` of APISIX may contain settings that its
/// role does not use.
///
/// # Errors
/// Settings contradict each other.
pub(crate) fn settle(settings: &mut Settings, has_file: bool) -> Result<Vec<String>, Failure> {
    let deployment = &mut settings.deployment;
    // etcd is APISIX's default. An address of etcd selects it here, so that such a gateway does not start without routes.
    if deployment.config_provider == ConfigProvider::Auto && deployment.etcd_is_set && !has_file {
        deployment.config_provider = ConfigProvider::Etcd;
    }
    let Deployment { role, config_provider, etcd, .. } = &settings.deployment;
    let is_etcd = *config_provider == ConfigProvider::Etcd;
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if is_etcd && has_file {
        return usage("deployment.config_provider is etcd, so there is no place for a rules file");
    }
    let mut doubts = Vec::new();
    let mut without_effect = |setting: &str, reason: &str| doubts.push(format!("{setting} has no effect: {reason}"));
    if !is_etcd && *etcd != settings::Etcd::default() {
        without_effect("deployment.etcd", "deployment.config_provider is not etcd");
    }
    if is_standalone(settings, has_file) {
        if settings.listen.admin == AutoEndpoint::Given(Endpoint::Off) {
            return usage(
                "deployment.config_provider yaml without a rules file takes the configuration from the Admin API, so \
                 listen.admin must not be off",
            );
        }
        if settings.store != settings::Store::default() {
            without_effect("store", "the configuration is kept in memory only");
        }
        let listen = &mut settings.listen;
        for (api, usual) in [(&mut listen.admin, ADMIN), (&mut listen.control, CONTROL)] {
            *api = AutoEndpoint::Given(api.unless_given(Endpoint::On(usual)));
        }
        return Ok(doubts);
    }
    let listen = &mut settings.listen;
    match role {
        Role::Traditional => {}
        Role::DataPlane if !has_file && !is_etcd => {
            return usage("deployment.role data_plane needs deployment.config_provider: etcd, or a rules file");
        }
        Role::DataPlane => {
            if listen.admin.unless_given(Endpoint::Off) != Endpoint::Off {
                without_effect("listen.admin", "a data plane has no Admin API");
            }
            listen.admin = AutoEndpoint::Given(Endpoint::Off);
        }
        Role::ControlPlane if !is_etcd => {
            return usage("deployment.role control_plane needs deployment.config_provider: etcd");
        }
        Role::ControlPlane => {
            let usual = Listen::default();
            for (name, now, usual) in [
                ("listen.http", &mut listen.http, usual.http),
                ("listen.https", &mut listen.https, usual.https),
                ("listen.tcp", &mut listen.tcp, usual.tcp),
                ("listen.udp", &mut listen.udp, usual.udp),
            ] {
                if !now.is_empty() && *now != usual {
                    without_effect(name, "a control plane carries no traffic");
                }
                now.clear();
            }
        }
    }
    Ok(doubts)
}

/// True if the configuration comes over the Admin API as a whole, and is kept in memory only.
pub(crate) fn is_standalone(settings: &Settings, has_file: bool) -> bool {
    let Deployment { role, config_provider, .. } = settings.deployment;
    let by_name = matches!(config_provider, ConfigProvider::Yaml | ConfigProvider::Json);
    by_name && !has_file && role == Role::Traditional
}

/// Result of the first read.
pub(crate) struct Beginning {
    pub(crate) store: Arc<Etcd>,
    /// The resources to serve, from etcd or from the copy.
    pub(crate) listing: Listing,
    /// The resources that served last, as replacements for those that are invalid now.
    pub(crate) before: Option<Served>,
    /// True if the listing is that of the copy.
    pub(crate) from_copy: bool,
    /// Warnings to be logged once there is a log.
    pub(crate) doubts: Vec<String>,
}

/// Reads all resources from etcd, or else from the copy of an earlier process.
///
/// # Errors
/// The settings are invalid, or neither etcd nor a copy can be read.
pub(crate) fn begin(settings: &Settings, copy: Option<Result<Served, String>>) -> Result<Beginning, Failure> {
    let (options, mut doubts) = options(settings)?;
    let read = read(&options, settings)?;
    let store = Arc::new(Etcd::new(options));
    let copy = match copy {
        Some(Ok(served)) => Some(served),
        Some(Err(reason)) => {
            doubts.push(format!("the copy of what served last is of no use: {reason}"));
            None
        }
        None => None,
    };
    match (read, copy) {
        (Ok(listing), copy) => Ok(match copy.map(|copy| lost(copy, &listing)) {
            Some((copy, Some(loss))) => {
                doubts.push(format!("{loss}; those of the local copy are served"));
                Beginning { store, listing: copy.listing.clone(), before: Some(copy), from_copy: true, doubts }
            }
            Some((copy, None)) => Beginning { store, listing, before: Some(copy), from_copy: false, doubts },
            None => Beginning { store, listing, before: None, from_copy: false, doubts },
        }),
        (Err(error), Some(copy)) => {
            let revision = copy.listing.revision;
            doubts.push(format!("{error}; revision {revision} is served from the local copy until etcd is back"));
            Ok(Beginning { store, listing: copy.listing.clone(), before: Some(copy), from_copy: true, doubts })
        }
        (Err(error), None) => {
            let place = &settings.store.data_dir;
            Err(Failure::Other(anyhow!("{error}; and there is no copy of its resources in {place} to start from")))
        }
    }
}

/// All resources in etcd.
///
/// # Errors
/// etcd is unreachable, or its settings are wrong.
pub(crate) fn reach(settings: &Settings) -> Result<Listing, Failure> {
    let (options, _) = options(settings)?;
    read(&options, settings)?.map_err(|error| Failure::Other(anyhow!("{error}")))
}

/// The resources that served last, and the loss if a listing replaced them.
fn lost(copy: Served, listing: &Listing) -> (Served, Option<String>) {
    let (serving, at) = (Resources::new(copy.listing.clone()), (copy.listing.cluster, copy.listing.revision));
    let state = Withheld::new(&serving, at.1, listing.clone());
    let loss = state.loss(&serving, at).map(|loss| state.describe(loss, &serving, at));
    (copy, loss)
}

/// Reads all resources from etcd, with a client of its own, because connections end with the runtime that made them.
fn read(options: &EtcdOptions, settings: &Settings) -> anyhow::Result<Result<Listing, StoreError>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot ask etcd")?;
    let store = Etcd::new(options.clone());
    Ok(runtime.block_on(async {
        let mut tries = settings.deployment.etcd.startup_retry;
        loop {
            match store.list(None).await {
                Err(_) if tries > 0 => tries -= 1,
                outcome => return outcome,
            }
            sleep(options.resync_delay).await;
        }
    }))
}

fn options(settings: &Settings) -> Result<(EtcdOptions, Vec<String>), Failure> {
    let etcd = &settings.deployment.etcd;
    let sealing = &etcd.data_encryption;
    let keyring = keyring(settings).map_err(Failure::Other)?;
    let mut doubts = Vec::new();
    if keyring.uses_default_key() {
        doubts.push(
            "secrets in etcd are encrypted with a key that everybody knows, since APISIX comes with it: see \
             deployment.etcd.data_encryption.keyring"
                .to_owned(),
        );
    }
    if etcd.user.is_empty() && !etcd.password.expose().is_empty() {
        return Err(Failure::Usage("deployment.etcd.password has no effect without deployment.etcd.user".to_owned()));
    }
    let authorities = etcd.tls.verify.then_some(etcd.tls.ca.as_str());
    let tls = weir_proxy::client_config(authorities, certificate(&etcd.tls)?.as_ref())
        .map_err(|reason| Failure::Other(anyhow!("deployment.etcd.tls: {reason}")))?;
    let user = (!etcd.user.is_empty()).then(|| (etcd.user.clone(), etcd.password.expose().to_owned()));
    let options = EtcdOptions {
        hosts: etcd.host.iter().map(ToString::to_string).collect(),
        prefix: etcd.prefix.clone(),
        user,
        timeout: etcd.timeout.duration(),
        watch_timeout: etcd.watch_timeout.duration(),
        health_check_interval: etcd.health_check_interval.duration(),
        resync_delay: etcd.resync_delay.duration(),
        tls: Arc::new(tls),
        tls_words: weir_proxy::tls_words,
        server_name: (!etcd.tls.sni.is_empty()).then(|| etcd.tls.sni.clone()),
        history: u64::from(settings.store.history),
        sealing: Sealing {
            keyring: Arc::new(keyring),
            secrets: Arc::new(SecretFields),
            fields: sealing.enable_encrypt_fields,
        },
    };
    Ok((options, doubts))
}

/// The keys of APISIX's encryption of secrets.
///
/// # Errors
/// The setting is invalid.
pub(crate) fn keyring(settings: &Settings) -> anyhow::Result<Keyring> {
    Keyring::new(settings.deployment.etcd.data_encryption.keyring.iter().map(settings::Secret::expose))
        .map_err(|error| anyhow!("deployment.etcd.data_encryption.keyring: {error}"))
}

/// The client certificate for etcd, with its key.
fn certificate(settings: &EtcdTls) -> Result<Option<(String, String)>, Failure> {
    let read = |setting: &str, path: &str| {
        file::read_text(path.as_ref()).with_context(|| format!("deployment.etcd.tls.{setting}: cannot read {path}"))
    };
    Ok(match (settings.cert.as_str(), settings.key.as_str()) {
        ("", "") => None,
        ("", _) | (_, "") => {
            let message = "deployment.etcd.tls.cert and deployment.etcd.tls.key need each other";
            return Err(Failure::Usage(message.to_owned()));
        }
        (cert, key) => Some((read("cert", cert)?, read("key", key)?)),
    })
}

/// The file name of the copy, one per prefix, because another prefix is another configuration.
pub(crate) fn copy_name(settings: &Settings) -> PathBuf {
    format!("etcd{}.json", settings.deployment.etcd.prefix.replace('/', "+")).into()
}

/// Status of etcd for the metrics.
#[derive(Debug)]
pub(crate) struct Status(pub(crate) Arc<EtcdHealth>);

impl EtcdStatus for Status {
    fn reachable(&self) -> bool {
        self.0.reachable()
    }

    fn indexes(&self) -> Vec<(&'static str, u64)> {
        let kinds = [
            Kind::Consumers,
            Kind::GlobalRules,
            Kind::Protos,
            Kind::Routes,
            Kind::Services,
            Kind::Ssls,
            Kind::StreamRoutes,
            Kind::Upstreams,
        ];
        let mut indexes: Vec<_> = kinds.into_iter().map(|kind| (kind.directory(), self.0.modified(kind))).collect();
        let latest = Kind::ALL.into_iter().map(|kind| self.0.modified(kind)).max().unwrap_or_default();
        indexes.extend([
            ("max_modify_index", latest),
            ("prev_index", self.0.delivered()),
            ("x_etcd_index", self.0.index()),
        ]);
        indexes
    }
}

impl StoreStatus for Status {
    fn is_up(&self) -> bool {
        self.0.reachable()
    }

    fn revision(&self) -> u64 {
        self.0.delivered()
    }
}
