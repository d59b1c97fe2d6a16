//! `tyk.conf`: what of it holds here.

mod storage;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The settings of a `tyk.conf` that the gateway follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Address that is listened on; empty: every address.
    pub listen_address: String,
    /// The port; 0: none is given.
    pub listen_port: u16,
    /// The secret of the gateway API; empty: there is no such API.
    pub secret: String,
    /// Folder of API definitions.
    pub app_path: Option<PathBuf>,
    /// File or folder of policies.
    pub policies: Option<PathBuf>,
    /// True if keys are stored by their hashes.
    pub hash_keys: bool,
    /// The function of hashes; empty: Tyk's default.
    pub hash_key_function: String,
    /// True if hashed keys are listed.
    pub lists_hashed_keys: bool,
    /// True if a key without rights may call every API.
    pub allow_master_keys: bool,
    /// True if `domain` of API definitions holds.
    pub enable_custom_domains: bool,
    /// Leaves out `X-Generator`.
    pub hide_generator_header: bool,
    /// Tells `X-RateLimit-*` of rates and not of quotas.
    pub tells_rates: bool,
    /// True if certificates of upstreams are not verified.
    pub skips_verification: bool,
    /// Serves paths that are not clean without a redirect.
    pub skips_url_cleaning: bool,
    /// Name of the page of health, without a slash.
    pub health_endpoint: String,
    /// True if `/tyk/health` answers.
    pub health_check: bool,
    /// True for a gateway whose definitions are in a Dashboard.
    pub of_dashboard: bool,
    /// Seconds that an upstream may take.
    pub proxy_default_timeout: u32,
    /// Seconds that a script may take; 0: the default.
    pub jsvm_timeout: u32,
    /// The Redis of sessions, in the fields of `weir_plugins::tyk`; none: sessions are in the data directory.
    pub storage: Option<Value>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            listen_address: String::new(),
            listen_port: 0,
            secret: String::new(),
            app_path: None,
            policies: None,
            hash_keys: false,
            hash_key_function: String::new(),
            lists_hashed_keys: false,
            allow_master_keys: false,
            enable_custom_domains: false,
            hide_generator_header: false,
            tells_rates: false,
            skips_verification: false,
            skips_url_cleaning: false,
            health_endpoint: "hello".to_owned(),
            health_check: false,
            of_dashboard: false,
            proxy_default_timeout: 0,
            jsvm_timeout: 0,
            storage: None,
        }
    }
}

impl Conf {
    /// Reads a `tyk.conf`. Relative paths are looked for in the working directory, and then beside the file.
    ///
    /// # Errors
    /// A field that is needed is of another type.
    pub(crate) fn read(value: &Value, folder: &Path) -> Result<Self, String> {
        let text = |path: &str| pointer(value, path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |path: &str| pointer(value, path) == Some(&Value::Bool(true));
        let number = |path: &str| pointer(value, path).and_then(Value::as_u64);
        let at = |path: String| {
            let given = PathBuf::from(path);
            if given.is_relative() && !given.exists() { folder.join(given) } else { given }
        };
        let port = number("listen_port").unwrap_or_default();
        let port = u16::try_from(port).map_err(|_| format!("listen_port: expected a port, found {port}"))?;
        let policies = match text("policies.policy_source").as_str() {
            "service" | "rpc" => None,
            _ => {
                let named = [text("policies.policy_path"), text("policies.policy_record_name")];
                named.into_iter().find(|path| !path.is_empty()).map(at)
            }
        };
        let health = text("health_check_endpoint_name");
        Ok(Self {
            listen_address: text("listen_address"),
            listen_port: port,
            secret: text("secret"),
            app_path: Some(text("app_path")).filter(|path| !path.is_empty()).map(at),
            policies,
            hash_keys: flag("hash_keys"),
            hash_key_function: text("hash_key_function"),
            lists_hashed_keys: flag("enable_hashed_keys_listing"),
            allow_master_keys: flag("allow_master_keys"),
            enable_custom_domains: flag("enable_custom_domains"),
            hide_generator_header: flag("hide_generator_header"),
            tells_rates: text("rate_limit_response_headers") == "rate_limits",
            skips_verification: flag("proxy_ssl_insecure_skip_verify"),
            skips_url_cleaning: flag("http_server_options.skip_url_cleaning"),
            health_endpoint: if health.is_empty() { "hello".to_owned() } else { health },
            health_check: flag("health_check.enable_health_checks"),
            of_dashboard: flag("use_db_app_configs"),
            proxy_default_timeout: number("proxy_default_timeout").unwrap_or_default().min(86_400) as u32,
            jsvm_timeout: number("jsvm_timeout").unwrap_or_default().min(60) as u32,
            storage: storage::read(value)?,
        })
    }
}

fn pointer<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// Settings that are refused where they are on, with the reason.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    (
        "use_db_app_configs",
        "the API definitions are in a Dashboard, which the gateway does not read: set app_path to a folder with them",
    ),
    ("slave_options.use_rpc", "the API definitions are in a control plane (MDCB), which the gateway does not read"),
    (
        "db_app_conf_options.node_is_segmented",
        "tags of segments are not looked at: give the gateway a folder of its own APIs",
    ),
    (
        "http_server_options.use_ssl",
        "certificates of tyk.conf are not read yet: give --listen-https and a TLS listener in the settings",
    ),
    ("control_api_port", "the gateway API has no port of its own yet: it is at the port of the traffic"),
    ("storage.ca_file", "list the authority in tls.trusted_certificate of the settings"),
    ("storage.cert_file", "client certificates for Redis are not supported yet"),
    ("storage.key_file", "client certificates for Redis are not supported yet"),
    ("enforce_org_quotas", "quotas of organisations are not supported yet"),
    ("security.control_api_use_mutual_tls", "mutual TLS of the gateway API is not supported yet"),
];

/// Settings without an effect here that somebody may rely on, with the reason.
pub(crate) const DOUBTED: &[(&str, &str)] = &[
    ("enable_analytics", "analytics are not written to Redis or MongoDB: see usage.enabled in the settings"),
    (
        "enable_redis_rolling_limiter",
        "rates are counted in windows that begin with a request, as Tyk's default limiter does",
    ),
    (
        "enable_sentinel_rate_limiter",
        "rates are counted in windows that begin with a request, as Tyk's default limiter does",
    ),
    (
        "enable_fixed_window_rate_limiter",
        "rates are counted in windows that begin with a request, as Tyk's default limiter does",
    ),
    ("monitor.enable_trigger_monitors", "events of quotas are not sent"),
    ("event_handlers.events", "only events of API definitions are sent"),
    ("override_messages", "messages of errors are Tyk's own"),
    ("cache_storage.host", "cached answers are kept in the memory of the gateway"),
    ("uptime_tests.config.enable_uptime_analytics", "uptime tests are not made"),
];
