//! Usage on its way to databases and files, by the setting `usage.exports`.

mod bson;
mod clickhouse;
mod csv;
pub(crate) mod link;
pub(crate) mod mongodb;
mod postgresql;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use url::Url;
use weir_config::Settings;
use weir_config::settings::{UsageExport, UsageTarget};
use weir_telemetry::metrics::{Metrics, UsageExportStatus};
use weir_usage::{Export, ExportOptions, ExportTotals, Sink};

use crate::process::priority::stand_back;
use crate::servers::server_info::host_name;

/// Name of the database of what has been sent, in the data directory.
const PROGRESS: &str = "exports.db";
/// The table, or the collection, unless told.
const TABLE: &str = "weir_usage";
/// Longest wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The exports of this process.
#[derive(Debug, Default)]
pub(crate) struct Exports(Vec<Export>);

/// A server, from a URL.
#[derive(Clone)]
struct Server {
    host: String,
    port: u16,
    user: String,
    password: String,
    database: String,
    table: String,
    /// TLS with verification of the certificate.
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Name of this gateway.
    gateway: String,
}

impl Exports {
    /// Starts what sends usage. `usage` is the database of the usage.
    ///
    /// # Errors
    /// An export has a wrong setting, or its progress cannot be read.
    pub(crate) fn start(settings: &Settings, usage: &Path, metrics: &Metrics) -> anyhow::Result<Self> {
        let options = &settings.usage;
        let gateway = match options.gateway.as_str() {
            "" => host_name(),
            name => name.to_owned(),
        };
        let mut all: Vec<Export> = Vec::new();
        let mut watched: Vec<(String, Arc<ExportTotals>)> = Vec::new();
        for (at, export) in options.exports.iter().enumerate() {
            let sink = sink(export, &gateway, settings).with_context(|| format!("usage.exports[{at}]"))?;
            if options.exports.iter().take(at).any(|other| other.name == export.name) {
                bail!("usage.exports[{at}].name: there is another export with the name {:?}", export.name);
            }
            let nice = settings.config.nice;
            let export_options = ExportOptions {
                name: export.name.clone(),
                usage: usage.to_owned(),
                progress: usage.with_file_name(PROGRESS),
                interval: options.export_interval.duration(),
                at_start: Box::new(move || stand_back(nice)),
            };
            let started = Export::start(export_options, sink).with_context(|| format!("usage.exports[{at}]"))?;
            watched.push((export.name.clone(), started.totals()));
            all.push(started);
        }
        if !watched.is_empty() {
            metrics.watch_usage_exports(Arc::new(Totals(watched)));
        }
        Ok(Self(all))
    }

    /// Ends all after a last round each, for which there is so much time in all.
    pub(crate) fn close(&self, limit: Duration) {
        let began = Instant::now();
        self.0.iter().for_each(Export::end);
        if !self.0.iter().all(|export| export.close(limit.saturating_sub(began.elapsed()))) {
            tracing::warn!("the last usage could not be exported; the next process does it");
        }
    }
}

#[derive(Debug)]
struct Totals(Vec<(String, Arc<ExportTotals>)>);

impl UsageExportStatus for Totals {
    fn each(&self, tell: &mut dyn FnMut(&str, [u64; 3])) {
        use std::sync::atomic::Ordering::Relaxed;
        for (name, totals) in &self.0 {
            tell(name, [totals.rows.load(Relaxed), totals.failures.load(Relaxed), totals.complete.load(Relaxed)]);
        }
    }
}

/// The target of an export.
fn sink(export: &UsageExport, gateway: &str, settings: &Settings) -> anyhow::Result<Box<dyn Sink>> {
    let UsageExport { to, url, directory, table, .. } = export;
    if *to == UsageTarget::Csv {
        let unused = [("url", url.is_some()), ("table", table.is_some())].into_iter().find(|(_, given)| *given);
        if let Some((name, _)) = unused {
            bail!("{name}: it has no effect with to: csv");
        }
        let directory = directory.as_ref().context("directory: the field is missing: to: csv needs it")?;
        return Ok(Box::new(csv::Files::new(Path::new(directory), gateway)?));
    }
    if directory.is_some() {
        bail!("directory: it has no effect except with to: csv");
    }
    let url = url.as_ref().context("url: the field is missing")?;
    // Neither the URL nor a part of it is shown: it may hold a password anywhere.
    let url = Url::parse(url.expose()).map_err(|error| anyhow::anyhow!("url: it is no URL: {error}"))?;
    let table = table.as_deref().unwrap_or(TABLE).to_owned();
    let trusted = settings.tls.trusted_certificate.as_str();
    Ok(match to {
        UsageTarget::Csv => unreachable_csv()?,
        UsageTarget::Clickhouse => Box::new(clickhouse::Table::new(&url, &table, gateway, trusted)?),
        UsageTarget::Postgresql => {
            let server =
                Server::of(&url, &["postgres", "postgresql"], 5432, ("sslmode", trusted), (table.as_str(), gateway))?;
            Box::new(postgresql::Table::new(server))
        }
        UsageTarget::Mongodb => {
            let server = Server::of(&url, &["mongodb"], 27_017, ("tls", trusted), (table.as_str(), gateway))?;
            Box::new(mongodb::Collection::new(server, &url)?)
        }
    })
}

fn unreachable_csv() -> anyhow::Result<Box<dyn Sink>> {
    bail!("to: csv has no url")
}

impl Server {
    /// The server of a URL. `mode` names the argument that says whether there is TLS, and the trusted authorities.
    fn of(
        url: &Url,
        schemes: &[&str],
        port: u16,
        (mode, trusted): (&str, &str),
        (table, gateway): (&str, &str),
    ) -> anyhow::Result<Self> {
        if !schemes.contains(&url.scheme()) {
            bail!("url: expected a scheme of {}, found {}", schemes.join(", "), url.scheme());
        }
        let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let host = url.host_str().filter(|host| !host.is_empty()).context("url: there is no host")?;
        if host.contains(',') || host.contains("%2C") {
            bail!("url: expected one host");
        }
        let has_tls = match url.query_pairs().find(|(name, _)| name == mode).map(|(_, value)| value.into_owned()) {
            Some(value) if matches!(value.as_str(), "disable" | "false") => false,
            None => true,
            Some(value) if matches!(value.as_str(), "verify-full" | "true") => true,
            Some(_) => bail!(
                "url: {mode}: expected {}",
                if mode == "tls" { "true or false" } else { "disable or verify-full" }
            ),
        };
        let known = [mode, "authSource"];
        if let Some((name, _)) = url.query_pairs().find(|(name, _)| !known.contains(&&**name)) {
            bail!("url: {name}: unknown argument; known is {mode}");
        }
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port().unwrap_or(port),
            user: decoded(url.username()),
            password: decoded(url.password().unwrap_or_default()),
            database: decoded(url.path().trim_start_matches('/')),
            table: table.to_owned(),
            tls: has_tls.then(|| link::verifying(trusted)).transpose()?,
            gateway: gateway.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Server, Url};

    #[test]
    fn a_server_is_read_from_its_url() {
        let server = |url: &str| {
            let url = Url::parse(url).expect("a URL");
            Server::of(&url, &["postgresql"], 5432, ("sslmode", "none"), ("t", "g"))
        };
        let found = server("postgresql://jack%40a:s%2Fecret@[::1]:99/usage?sslmode=disable").expect("a server");
        assert_eq!((found.host.as_str(), found.port, found.database.as_str()), ("::1", 99, "usage"));
        assert_eq!((found.user.as_str(), found.password.as_str(), found.tls.is_none()), ("jack@a", "s/ecret", true));
        for (url, reason) in [
            ("mysql://a/b", "expected a scheme of postgresql, found mysql"),
            ("postgresql:///b", "there is no host"),
            ("postgresql://a/b?sslmode=require", "sslmode: expected disable or verify-full"),
            ("postgresql://a/b?sslmode=disable&connect_timeout=1", "connect_timeout: unknown argument"),
            // TLS is the default, and needs authorities.
            ("postgresql://a/b", "none"),
        ] {
            let error = server(url).map(|_| ()).expect_err(url);
            assert!(format!("{error:#}").contains(reason), "{url}: {error:#}");
        }
    }
}
