//! The command line. `docs/cli.md` is generated from these definitions.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use weir_config::InvalidItems;
use weir_store::Key;

/// An API gateway for Apache APISIX's resources, from a store or from a file.
///
/// `weir run` serves the routes of its own store, which the Admin API changes. `weir run apisix.yaml` serves the routes in
/// that file and reloads the file when it changes.
#[derive(Debug, Parser)]
#[command(name = "weir", version, disable_help_subcommand = true, max_term_width = 120, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the routes of a store, or of a rules file.
    ///
    /// Without FILE, the routes are in a store in the data directory, and the Admin API changes them while the gateway
    /// runs. With FILE, the whole file is checked before any socket is opened, and watched afterwards: a change is live
    /// within 200 ms, or refused with the reasons in the error log, and the live configuration stays in force.
    ///
    /// Standard output gets one line for each bound address, and `ready` when all workers serve.
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Check a rules file and the settings, and print all errors that would keep `run` from starting.
    ///
    /// Findings go to standard error, a summary to standard output. If the settings are refused, the rules file is checked
    /// with the default settings. Without FILE, the resources of the store are checked, or those of etcd, which has to
    /// be reachable. No socket is opened for clients and nothing is changed.
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(RunArgs),
    /// Explain the handling of a request: its route, upstream and plugins, and why other routes do not match.
    ///
    /// No request is sent.
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Write a configuration of Kong's, or manifests of its ingress controller, as a rules file in APISIX's form.
    ///
    /// The result has a comment for everything that changes and begins with a list of what has no counterpart. A plugin without
    /// one is left out where it only reports; requests that any other one is for are answered with 503. The result is checked
    /// before it is written.
    #[command(after_long_help = CONVERT_EXAMPLES)]
    Convert(ConvertArgs),
    /// Inspect, change and repair the store of a gateway.
    ///
    /// Commands that only read work while the gateway runs. Commands that write need a stopped gateway; use the Admin API
    /// of a running one instead.
    #[command(subcommand, after_long_help = STORE_EXAMPLES)]
    Store(StoreCommand),
    /// Ask a running gateway whether it serves, and exit with 0 if so.
    ///
    /// For health checks of containers that hold no other program.
    Ready {
        /// The address of its status server.
        #[arg(value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7085")]
        address: SocketAddr,
    },
    /// Print the version.
    Version,
    /// Print a completion script for a shell.
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The rules file: routes, services, upstreams, consumers, … in YAML or JSON, or a configuration of Kong, Tyk or 3scale's
    /// APIcast. Without FILE they are in the store, or in 3scale's portal at THREESCALE_PORTAL_ENDPOINT.
    #[arg(
        value_name = "FILE",
        env = "THREESCALE_CONFIG_FILE",
        hide_env_values = true,
        value_hint = ValueHint::FilePath
    )]
    pub(crate) file: Option<PathBuf>,
    /// Handling of a file with an invalid item: `refuse` refuses the whole file, `skip` leaves out the item and all items
    /// that refer to it, as APISIX does.
    #[arg(long, value_name = "refuse|skip", default_value = "refuse", hide_possible_values = true, requires = "file")]
    pub(crate) invalid_items: InvalidItemsArg,
    /// Treat warnings as errors, such as the warning about a YAML file without `#END`. Not together with `skip`.
    #[arg(long, requires = "file")]
    pub(crate) strict: bool,
    /// Handling of plugins of Kong that are not supported: `refuse` refuses the file, `skip-with-warning` serves without
    /// them. Those that authenticate, limit or check requests are refused in any case.
    #[arg(
        long,
        value_name = "refuse|skip-with-warning",
        default_value = "refuse",
        hide_possible_values = true,
        requires = "file"
    )]
    pub(crate) unsupported_plugins: UnsupportedPluginsArg,
    /// Address of a service of Kubernetes that manifests in FILE name: `--resolve NAMESPACE/NAME=HOST:PORT`, where the
    /// namespace may be left out and a port may stand behind the name. May be repeated.
    #[arg(long, value_name = "SERVICE=ADDRESS", value_parser = resolution, requires = "file")]
    pub(crate) resolve: Vec<(String, String)>,
    /// Family of an empty store, and so of its Admin API: `apisix` or `kong`. A store with resources knows its own, and
    /// FILE says it by its content. [default: apisix]
    #[arg(long, value_name = "apisix|kong", hide_possible_values = true, conflicts_with = "file")]
    pub(crate) family: Option<FamilyArg>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check the store, and that its resources can be served.
    Check(StoreArgs),
    /// Print all resources as a rules file, secrets included.
    Export(StoreArgs),
    /// Replace all resources by those of a rules file.
    Import {
        /// The rules file; `-` is standard input.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// List the changes, the latest first: revision, time, author, and the changed resources.
    History {
        /// Only the changes of one resource, such as `routes/1`.
        #[arg(long, value_name = "KIND/ID")]
        key: Option<Key>,
        /// Maximum number of changes.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Show the differences between two revisions. Secrets are masked.
    Diff {
        /// A revision of the history; 0 is the empty store.
        from: u64,
        /// The revision to compare with.
        to: u64,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Restore all resources to their state at a revision. The rollback is a change itself and can be rolled back.
    Rollback {
        /// A revision of the history.
        revision: u64,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Write a consistent copy of the database. The copy does not contain the key.
    Backup {
        /// The copy. An existing file is replaced.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Replace the database by a backup, or without FILE by the copy of the last good state. The old database is kept.
    Restore {
        /// A file written by `weir store backup`.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Options that select a store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) rules: RulesArgs,
    /// The request: a method and a URL, or a URL alone for GET. The URL may be a path, with the host in -H
    /// (without one: localhost).
    #[arg(long, value_name = "METHOD URL")]
    pub(crate) request: String,
    /// A field of the request. May be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    pub(crate) headers: Vec<(String, String)>,
    /// The address that the request comes from.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) remote: IpAddr,
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    pub(crate) rules: RulesArgs,
    /// File for the result. An existing file is replaced. [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// Option for the data directory of a store.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct DataArgs {
    /// The data directory of the store; setting `store.data_dir`. [default: weir-data]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) data_dir: Option<PathBuf>,
}

/// The rules file, and the options for reading it.
#[derive(Clone, Debug, Args)]
pub(crate) struct RulesArgs {
    /// The rules file: routes, services, upstreams, consumers, … in YAML or JSON. `-` is standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Handling of a file with an invalid item: `refuse` refuses the whole file, `skip` leaves out the item and all items
    /// that refer to it, as APISIX does.
    #[arg(long, value_name = "refuse|skip", default_value = "refuse", hide_possible_values = true)]
    pub(crate) invalid_items: InvalidItemsArg,
    /// Treat warnings as errors, such as the warning about a YAML file without `#END`. Not together with `skip`.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Address of a service of Kubernetes that manifests in FILE name: `--resolve NAMESPACE/NAME=HOST:PORT`.
    #[arg(long, value_name = "SERVICE=ADDRESS", value_parser = resolution)]
    pub(crate) resolve: Vec<(String, String)>,
    /// Handling of plugins of Kong that are not supported: `refuse` refuses the file, `skip-with-warning` serves without
    /// them. Those that authenticate, limit or check requests are refused in any case.
    #[arg(long, value_name = "refuse|skip-with-warning", default_value = "refuse", hide_possible_values = true)]
    pub(crate) unsupported_plugins: UnsupportedPluginsArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FamilyArg {
    Apisix,
    Kong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvalidItemsArg {
    Refuse,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnsupportedPluginsArg {
    Refuse,
    SkipWithWarning,
}

/// Sources of the gateway's own settings.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// File of the gateway's own settings (listeners, limits, timeouts, logs) in YAML, or APISIX's config.yaml. Without
    /// this option no settings file is read.
    #[arg(long, value_name = "FILE", env = "WEIR_SETTINGS", hide_env_values = true, value_hint = ValueHint::FilePath)]
    pub(crate) settings: Option<PathBuf>,
    /// Set any setting: `--set limits.head_size=32KiB`. The items of a list are separated by commas. May be repeated; the
    /// last value of a path takes precedence. docs/configuration.md lists the settings.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = assignment)]
    pub(crate) assignments: Vec<(String, String)>,
}

/// Flags for the most common settings.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct ListenArgs {
    /// Listen for traffic here; setting `listen.http`. May be repeated. A port alone means all IPv4 addresses, as in every
    /// flag below, and `localhost` means 127.0.0.1. Port 0 selects a free port; `unix:/PATH` is a Unix socket.
    /// [default: 0.0.0.0:9080]
    #[arg(long, value_name = "ADDRESS:PORT|unix:/PATH")]
    pub(crate) listen_http: Vec<String>,
    /// Listen for traffic over TLS here, or `off`; setting `listen.https`. May be repeated. [default: 0.0.0.0:9443]
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub(crate) listen_https: Vec<String>,
    /// Serve Prometheus metrics here, or `off`; setting `listen.metrics`. [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub(crate) metrics: Option<String>,
    /// Serve /status and /status/ready here, or `off`; setting `listen.status`. [default: 127.0.0.1:7085]
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub(crate) status: Option<String>,
    /// Serve the Admin API here, or `off`; setting `listen.admin`. With FILE the API is read-only. [default:
    /// 127.0.0.1:9180, with FILE off]
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub(crate) admin: Option<String>,
    /// Serve the control API here, or `off`; setting `listen.control`. [default: 127.0.0.1:9090, with FILE off]
    #[arg(long, value_name = "ADDRESS:PORT|off")]
    pub(crate) control: Option<String>,
    /// Number of threads that carry traffic, 1 to 1024, or `auto` for one per core; setting `workers`. [default: auto]
    #[arg(long, value_name = "N|auto")]
    pub(crate) workers: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  weir check apisix.yaml
  weir run apisix.yaml --listen-http 127.0.0.1:8080
  weir explain apisix.yaml --request 'GET http://api.example.com/orders'

Exit codes: 0 done, 1 failed (with the reason on standard error), 2 wrong usage.";

const RUN_EXAMPLES: &str = "\
Each setting comes from the first of these that has it: flags, the environment (WEIR_LIMITS_HEAD_SIZE is \
limits.head_size), the settings file, defaults.

Signals: SIGTERM and SIGINT finish what is in flight and stop, a second one stops at once; SIGHUP reads the rules \
again; SIGUSR1 opens the log files again; SIGUSR2 starts the program's file anew, which takes over without a lost request.

Examples:
  weir run
  weir run --data-dir /var/lib/weir
  weir run apisix.yaml
  weir run apisix.yaml --settings weir.yaml --workers 4
  weir run apisix.yaml --listen-http 127.0.0.1:8080 --listen-http '[::1]:8080' --metrics off
  WEIR_ACCESS_LOG_PATH=stdout weir run apisix.yaml --set timeouts.idle=30s";

const CHECK_EXAMPLES: &str = "\
Exit codes: 0 it would be taken, 1 it would be refused, 2 wrong usage.

Examples:
  weir check apisix.yaml --strict
  weir check --settings weir.yaml
  generate-rules | weir check -";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  weir explain apisix.yaml --request 'GET http://api.example.com/orders?page=2'
  weir explain apisix.yaml --request 'POST /orders' -H 'Host: api.example.com' -H 'apikey: k1' --remote 10.0.0.7";

const CONVERT_EXAMPLES: &str = "\
Examples:
  weir convert kong.yml > apisix.yaml
  weir convert kong.yml --output apisix.yaml && weir run apisix.yaml
  weir convert manifests/ --resolve shop/orders=127.0.0.1:9000";

const STORE_EXAMPLES: &str = "\
Examples:
  weir store export --data-dir /var/lib/weir > apisix.yaml
  weir store import apisix.yaml
  weir store history --key routes/1
  weir store rollback 41
  weir store backup /backup/weir.db";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  weir completions bash > /etc/bash_completion.d/weir
  weir completions zsh > \"${fpath[1]}/_weir\"
  weir completions fish > ~/.config/fish/completions/weir.fish";

impl RunArgs {
    /// The rules file, if there is one.
    pub(crate) fn rules(&self) -> Option<RulesArgs> {
        let file = self.file.clone()?;
        let Self { invalid_items, strict, unsupported_plugins, .. } = *self;
        Some(RulesArgs { file, invalid_items, strict, resolve: self.resolve.clone(), unsupported_plugins })
    }

    /// The flags as settings.
    pub(crate) fn assignments(&self) -> Vec<(String, String)> {
        self.listen.assignments().into_iter().chain(self.data.assignments()).collect()
    }
}

impl RulesArgs {
    /// A file, without flags about it.
    pub(crate) fn of(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            invalid_items: InvalidItemsArg::Refuse,
            strict: false,
            resolve: Vec::new(),
            unsupported_plugins: UnsupportedPluginsArg::Refuse,
        }
    }
}

impl DataArgs {
    /// The flag as a setting.
    pub(crate) fn assignments(&self) -> Option<(String, String)> {
        Some(("store.data_dir".to_owned(), self.data_dir.as_ref()?.display().to_string()))
    }
}

impl RulesArgs {
    pub(crate) fn invalid_items(&self) -> InvalidItems {
        match self.invalid_items {
            InvalidItemsArg::Refuse => InvalidItems::Refuse,
            InvalidItemsArg::Skip => InvalidItems::Skip,
        }
    }

    pub(crate) fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }
}

impl ListenArgs {
    /// The flags as settings.
    pub(crate) fn assignments(&self) -> Vec<(String, String)> {
        let http = (!self.listen_http.is_empty()).then(|| self.listen_http.join(","));
        // An empty list means that nothing listens.
        let https = (!self.listen_https.is_empty()).then(|| {
            self.listen_https.iter().filter(|addr| *addr != "off").map(String::as_str).collect::<Vec<_>>().join(",")
        });
        let given = [
            ("listen.http", http.as_ref()),
            ("listen.https", https.as_ref()),
            ("listen.metrics", self.metrics.as_ref()),
            ("listen.status", self.status.as_ref()),
            ("listen.admin", self.admin.as_ref()),
            ("listen.control", self.control.as_ref()),
            ("workers", self.workers.as_ref()),
        ];
        given.into_iter().filter_map(|(path, value)| Some((path.to_owned(), value?.clone()))).collect()
    }
}

fn assignment(text: &str) -> Result<(String, String), &'static str> {
    let (path, value) = text.split_once('=').ok_or("expected PATH=VALUE, such as limits.head_size=32KiB")?;
    Ok((path.trim().to_owned(), value.to_owned()))
}

fn resolution(text: &str) -> Result<(String, String), &'static str> {
    let (service, address) =
        text.split_once('=').ok_or("expected SERVICE=ADDRESS, such as shop/orders=127.0.0.1:8080")?;
    Ok((service.trim().to_owned(), address.trim().to_owned()))
}

fn field(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("expected 'NAME: VALUE', such as 'apikey: k1'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
