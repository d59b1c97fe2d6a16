//! `tyk.conf`: what of it holds here.

mod storage;
mod tls;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use weir_plugins::tyk::{message_ids, sender};

pub(crate) use tls::Tls;

/// The settings of a `tyk.conf` that the gateway follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Address that is listened on; empty: every address.
    pub listen_address: String,
    /// The port; 0: none is given.
    pub listen_port: u16,
    /// The secret of the gateway API; empty: there is no such API.
    pub secret: String,
    /// The port of the gateway API alone (`control_api_port`); 0: it is at the port of the traffic.
    pub control_port: u16,
    /// The only host that the gateway API answers for (`control_api_hostname`); empty: every host.
    pub control_host: String,
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
    /// True where uptime tests are not made.
    pub uptime_disabled: bool,
    /// Seconds between two uptime tests of a target; 0: 10.
    pub uptime_wait: u32,
    /// Failed uptime tests by which a target is down, and good ones by which it is up again; 0: 3.
    pub uptime_samples: u32,
    /// Seconds that a script may take; 0: the default.
    pub jsvm_timeout: u32,
    /// Refusals of tokens in other words, in the fields of `weir_plugins::tyk`.
    pub messages: Value,
    /// `HOST:PORT` of the service with middleware over gRPC; none: there is no such middleware.
    pub coprocess: Option<String>,
    /// The Redis of sessions, in the fields of `weir_plugins::tyk`; none: sessions are in the data directory.
    pub storage: Option<Value>,
    /// Times for which sessions stay in Redis.
    pub lifetimes: Lifetimes,
    /// Destination of records of requests; none: there are no records.
    pub analytics: Option<Analytics>,
    /// TLS at the port; none: there is no TLS.
    pub tls: Option<Tls>,
    /// Settings of the OAuth servers of APIs.
    pub oauth: OAuth,
    /// True if limits of organisations hold (`enforce_org_quotas`).
    pub enforces_organisations: bool,
    /// Triggers of quotas, in the fields of `weir_plugins::tyk`; none: nobody is told.
    pub monitor: Option<Value>,
    /// Handlers of events of keys by the names of the events.
    pub events: Map<String, Value>,
    /// True if a client without a certificate may have a token where keys are certificates.
    pub allows_tokens_for_certificates: bool,
}

/// Settings of OAuth servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    /// Seconds for which a token holds (`oauth_token_expire`).
    pub access_expires: u64,
    /// Seconds for which one for new tokens holds (`oauth_refresh_token_expire`).
    pub refresh_expires: u64,
    /// Status of errors (`oauth_error_status_code`).
    pub error_status: u16,
    /// Text between the URIs of a client (`oauth_redirect_uri_separator`); empty: it has one.
    pub separator: String,
}

impl Default for OAuth {
    fn default() -> Self {
        Self { access_expires: ACCESS, refresh_expires: REFRESH, error_status: 403, separator: String::new() }
    }
}

impl OAuth {
    /// # Errors
    /// A status is none.
    fn read(value: &Value) -> Result<Self, String> {
        let number = |field: &str| value.get(field).and_then(Value::as_u64).filter(|number| *number > 0);
        let seconds = |field: &str, default: u64| number(field).unwrap_or(default).min(YEARS);
        let status = number("oauth_error_status_code").unwrap_or(403);
        let error_status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
        Ok(Self {
            access_expires: seconds("oauth_token_expire", ACCESS),
            refresh_expires: seconds("oauth_refresh_token_expire", REFRESH),
            error_status: error_status
                .ok_or_else(|| format!("oauth_error_status_code: expected a status from 200 to 599, found {status}"))?,
            separator: value["oauth_redirect_uri_separator"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// Seconds for which a token of OAuth holds, and one for new tokens, as in Tyk.
const ACCESS: u64 = 3600;
const REFRESH: u64 = 1_209_600;
/// Most seconds of a time: ten years.
const YEARS: u64 = 315_360_000;

/// Records of requests for Tyk's Pump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analytics {
    /// Their destination.
    pub to: Records,
    /// Addresses whose requests are not recorded.
    pub ignored_ips: Vec<String>,
    /// Records requests and answers of all APIs whole.
    pub is_detailed: bool,
}

/// The destination of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// A list in the Redis of `storage`, or of `analytics_storage`.
    Redis {
        /// Name or address.
        host: String,
        /// Its port.
        port: u16,
        /// User; empty: the default user.
        username: String,
        /// Password; empty: none.
        password: String,
        /// Number of the database.
        database: u32,
        /// TLS on the connection.
        use_ssl: bool,
        /// True if the certificate is not verified.
        skips_verification: bool,
        /// Seconds after which a list that nobody reads is gone; -1: never.
        expires: i64,
    },
    /// A collection of MongoDB, as Tyk 1 wrote it.
    Mongo {
        /// URL with the database.
        url: String,
        /// The collection.
        collection: String,
    },
    /// Files in CSV, one for an hour.
    Csv {
        /// Their folder, from the working directory on.
        folder: PathBuf,
    },
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            listen_address: String::new(),
            listen_port: 0,
            secret: String::new(),
            control_port: 0,
            control_host: String::new(),
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
            analytics: None,
            uptime_disabled: false,
            uptime_wait: 0,
            uptime_samples: 0,
            jsvm_timeout: 0,
            coprocess: None,
            messages: Value::Object(Map::new()),
            storage: None,
            lifetimes: Lifetimes::default(),
            tls: None,
            oauth: OAuth::default(),
            enforces_organisations: false,
            monitor: None,
            events: Map::new(),
            allows_tokens_for_certificates: false,
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
        let control = number("control_api_port").unwrap_or_default();
        let control =
            u16::try_from(control).map_err(|_| format!("control_api_port: expected a port, found {control}"))?;
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
            // As in Tyk, where it is the port of the traffic as well.
            control_port: if control == port { 0 } else { control },
            control_host: text("control_api_hostname").to_ascii_lowercase(),
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
            uptime_disabled: flag("uptime_tests.disable"),
            uptime_wait: number("uptime_tests.config.time_wait").unwrap_or_default().min(86_400) as u32,
            uptime_samples: number("uptime_tests.config.failure_trigger_sample_size").unwrap_or_default().min(254)
                as u32,
            jsvm_timeout: number("jsvm_timeout").unwrap_or_default().min(60) as u32,
            messages: messages(value)?,
            coprocess: flag("coprocess_options.enable_coprocess").then(|| coprocess(value)).transpose()?.flatten(),
            storage: storage::read(value)?,
            lifetimes: Lifetimes {
                global: flag("force_global_session_lifetime")
                    .then(|| number("global_session_lifetime").unwrap_or_default()),
                wait_for_expiry: flag("session_lifetime_respects_key_expiration"),
            },
            tls: tls::read(value)?,
            oauth: OAuth::read(value)?,
            enforces_organisations: flag("enforce_org_quotas"),
            monitor: flag("monitor.enable_trigger_monitors").then(|| value["monitor"].clone()),
            events: events(value),
            allows_tokens_for_certificates: flag("security.allow_unsafe_dynamic_mtls_token"),
            analytics: flag("enable_analytics").then(|| Analytics::read(value)).transpose()?,
        })
    }

    /// Paths of the templates of web hooks.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &str> {
        let handlers = self.events.values().filter_map(Value::as_array).flatten();
        let hooks = handlers.map(|handler| &handler["handler_meta"]);
        let hooks = hooks.chain(self.monitor.iter().map(|monitor| &monitor["configuration"]));
        hooks.filter_map(|hook| hook["template_path"].as_str()).filter(|path| !path.is_empty())
    }
}

/// Times for which sessions stay in Redis, for all APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Seconds in the place of those that keys and APIs say (`force_global_session_lifetime`); 0: for ever.
    pub global: Option<u64>,
    /// True if no session goes before its key expires (`session_lifetime_respects_key_expiration`).
    pub wait_for_expiry: bool,
}

/// Refusals in other words.
///
/// # Errors
/// An entry about something else, or with a status that is none.
fn messages(value: &Value) -> Result<Value, String> {
    let mut made = Map::new();
    for (id, entry) in value.get("override_messages").and_then(Value::as_object).into_iter().flatten() {
        let field = format!("override_messages.{id}");
        if !message_ids().any(|known| known == id) {
            let known: Vec<&str> = message_ids().collect();
            return Err(format!("{field}: expected one of: {}", known.join(", ")));
        }
        let code = entry["code"].as_u64().unwrap_or_default();
        if code != 0 && !(400..600).contains(&code) {
            return Err(format!("{field}.code: expected a status from 400 to 599, found {code}"));
        }
        let message = entry["message"].as_str().unwrap_or_default();
        made.insert(id.to_owned(), json!({ "message": message, "code": code }));
    }
    Ok(Value::Object(made))
}

/// Handlers of events of keys, without those that are off.
fn events(value: &Value) -> Map<String, Value> {
    let all = pointer(value, "event_handlers.events").and_then(Value::as_object).into_iter().flatten();
    let of_keys = all.filter(|(name, _)| sender(name) == Some("gateway"));
    let live = of_keys.map(|(name, handlers)| {
        let handlers = handlers.as_array().into_iter().flatten();
        let handlers = handlers.filter(|handler| !is_script(handler) && handler["handler_meta"]["disabled"] != true);
        (name.clone(), handlers.cloned().collect::<Value>())
    });
    live.collect()
}

/// True for a handler in JavaScript, which is run for events of APIs alone.
pub(crate) fn is_script(handler: &Value) -> bool {
    handler["handler_name"] == "eh_dynamic_handler"
}

/// The address of the service with middleware; `None` without one: only scripts in other languages were switched on.
fn coprocess(value: &Value) -> Result<Option<String>, String> {
    const FIELD: &str = "coprocess_options.coprocess_grpc_server";
    let server = pointer(value, FIELD).and_then(Value::as_str).unwrap_or_default();
    if server.is_empty() {
        return Ok(None);
    }
    let address = server.strip_prefix("tcp://").or_else(|| server.strip_prefix("dns:///")).unwrap_or(server);
    match address.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(Some(address.to_owned())),
        _ => Err(format!("{FIELD}: expected tcp://HOST:PORT, found '{server}'")),
    }
}

impl Analytics {
    /// # Errors
    /// The destination is none that records can be written to.
    fn read(value: &Value) -> Result<Self, String> {
        let text = |path: &str| pointer(value, path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let texts = |path: &str| {
            let list = pointer(value, path).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let to = match text("analytics_config.type").as_str() {
            "mongo" => Records::mongo(&text)?,
            "csv" => match text("analytics_config.csv_dir").as_str() {
                "" => return Err("analytics_config.csv_dir: expected the path of a folder".to_owned()),
                folder => Records::Csv { folder: PathBuf::from(folder) },
            },
            "" => Records::redis(value)?,
            other => {
                let expected = "expected mongo, csv, or none for a list of Redis";
                return Err(format!("analytics_config.type: {expected}, found '{other}'"));
            }
        };
        if text("analytics_config.serializer_type") == "protobuf" {
            return Err(
                "analytics_config.serializer_type: protobuf is not supported: set msgpack, which the Pump reads as \
                        well"
                    .to_owned(),
            );
        }
        let is_detailed = pointer(value, "analytics_config.enable_detailed_recording") == Some(&Value::Bool(true));
        Ok(Self { to, ignored_ips: texts("analytics_config.ignored_ips"), is_detailed })
    }
}

impl Records {
    fn mongo(text: &dyn Fn(&str) -> String) -> Result<Self, String> {
        let (url, database) = (text("analytics_config.mongo_url"), text("analytics_config.mongo_db_name"));
        let collection = text("analytics_config.mongo_collection");
        if !url.starts_with("mongodb://") {
            return Err("analytics_config.mongo_url: expected mongodb://HOST:PORT/DATABASE".to_owned());
        }
        // The name of the database may stand apart, and TLS is asked for by an argument.
        let (address, arguments) = url.split_once('?').unwrap_or((&url, ""));
        let has_database = address.trim_start_matches("mongodb://").contains('/') && !address.ends_with('/');
        let path = if has_database { String::new() } else { format!("/{database}") };
        let tls = if arguments.contains("tls=") { "" } else { "tls=false" };
        let arguments: Vec<&str> = [arguments, tls].into_iter().filter(|text| !text.is_empty()).collect();
        let url = format!("{}{path}?{}", address.trim_end_matches('/'), arguments.join("&"));
        let collection = if collection.is_empty() { "tyk_analytics".to_owned() } else { collection };
        Ok(Self::Mongo { url, collection })
    }

    fn redis(value: &Value) -> Result<Self, String> {
        let is_apart = pointer(value, "enable_separate_analytics_store") == Some(&Value::Bool(true));
        let storage = if is_apart { "analytics_storage" } else { "storage" };
        let at = |field: &str| value.get(storage).and_then(|storage| storage.get(field));
        let text = |field: &str| at(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |field: &str| at(field) == Some(&Value::Bool(true));
        for field in ["enable_cluster", "master_name"] {
            if flag(field) || !text(field).is_empty() {
                let reason = "records are written to one server of Redis: clusters and sentinels are not supported yet";
                return Err(format!("{storage}.{field}: {reason}, with enable_analytics"));
            }
        }
        let addresses: Vec<&str> =
            at("addrs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let (host, port) = match addresses.as_slice() {
            [] => (text("host"), at("port").and_then(Value::as_u64).unwrap_or(6379)),
            [address] => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
                (host.to_owned(), port.parse().unwrap_or(0))
            }
            _ => return Err(format!("{storage}.addrs: expected one address, with enable_analytics")),
        };
        let port = u16::try_from(port).ok().filter(|port| *port > 0);
        let expires = pointer(value, "analytics_config.storage_expiration_time").and_then(Value::as_i64);
        Ok(Self::Redis {
            host: if host.is_empty() { "localhost".to_owned() } else { host },
            port: port.ok_or_else(|| format!("{storage}.port: expected a port"))?,
            username: text("username"),
            password: text("password"),
            database: at("database").and_then(Value::as_u64).unwrap_or(0).min(u64::from(u32::MAX)) as u32,
            use_ssl: flag("use_ssl"),
            skips_verification: flag("ssl_insecure_skip_verify"),
            // Tyk's own, where none is given.
            expires: expires.filter(|seconds| *seconds != 0).unwrap_or(60),
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
    ("storage.ca_file", "list the authority in tls.trusted_certificate of the settings"),
    ("storage.cert_file", "client certificates for Redis are not supported yet"),
    ("storage.key_file", "client certificates for Redis are not supported yet"),
    (
        "experimental_process_org_off_thread",
        "limits of organisations are looked at before a request goes on, and not after it",
    ),
    ("security.control_api_use_mutual_tls", "mutual TLS of the gateway API is not supported yet"),
];

/// Settings without an effect here that somebody may rely on, with the reason.
pub(crate) const DOUBTED: &[(&str, &str)] = &[
    ("analytics_config.enable_geo_ip", "places of addresses are not looked up: records have none"),
    ("analytics_config.normalise_urls.enabled", "records have paths as they came"),
    ("analytics_config.enable_multiple_analytics_keys", "records go to one list, which the Pump reads as well"),
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
    ("cache_storage.host", "cached answers are kept in the memory of the gateway"),
    ("uptime_tests.config.enable_uptime_analytics", "results of uptime tests are not recorded"),
];
