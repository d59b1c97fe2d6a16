//! The keys of `kong.conf` 3.9 with their effects.

use super::Effect::{Elsewhere, Fixed, Nothing, Sets};
use super::{ConfKey, Effect, Given, listen};

const fn key(name: &'static str, effect: Effect) -> ConfKey {
    ConfKey { name, effect }
}

const OF_NGINX: &str = "a directive of nginx, which is not there";
const OF_LUA: &str = "there is no Lua, and so no memory or setting of it";
const OF_DATABASE: &str = "entities are in the embedded store, or in a file (database = off)";
const OF_CLUSTER: &str = "there is no hybrid mode: each gateway has its store or its file";
const OF_MANAGER: &str = "Kong Manager is not there";
const OF_DNS: &str = "how long answers are used is dns.min_ttl and dns.max_ttl";
const OF_ADMIN_LOG: &str = "requests to the Admin API and the status API are not logged apart";
const OF_POOL: &str =
    "an upstream keeps 512 connections for each node, for 60 seconds and 10000 requests, as Kong does";
const ADMIN_TLS: &str = "the certificate of the Admin API is the setting admin.tls.cert";
const CERTIFICATES: &str = "certificates for clients are entities: certificates with snis";
const OF_TRACING: &str = "traces are those of the plugins opentelemetry and zipkin";

/// Every key. A key that ends with `*` comes after those that it would hide.
pub static KEYS: &[ConfKey] = &[
    key("prefix", Nothing("the data directory is --data-dir")),
    key("log_level", Sets(log_level)),
    key("proxy_access_log", Sets(access_log)),
    key("proxy_error_log", Sets(error_log)),
    key("proxy_stream_access_log", Sets(stream_access_log)),
    key("proxy_stream_error_log", Nothing("there is one error log: proxy_error_log")),
    key("admin_access_log", Fixed(&["off"], OF_ADMIN_LOG)),
    key("admin_error_log", Nothing("there is one error log: proxy_error_log")),
    key("status_access_log", Fixed(&["off"], OF_ADMIN_LOG)),
    key("status_error_log", Nothing("there is one error log: proxy_error_log")),
    key("admin_gui_access_log", Nothing(OF_MANAGER)),
    key("admin_gui_error_log", Nothing(OF_MANAGER)),
    key("debug_access_log", Nothing(OF_ADMIN_LOG)),
    key("debug_error_log", Nothing(OF_ADMIN_LOG)),
    key("vaults", Fixed(&["bundled", "env"], "references are resolved by the vault env alone")),
    key("vault_env_prefix", Nothing("the prefix of variables stands in an entity of vaults: config.prefix")),
    key("vault_*", Nothing("references are resolved by the vault env alone")),
    key("plugins", Fixed(&["bundled"], "every plugin that is there may be used")),
    key("anonymous_reports", Fixed(&["off", "false"], "nothing is ever reported to anybody")),
    key("proxy_server", Nothing("plugins ask their services themselves")),
    key("proxy_server_ssl_verify", Nothing("plugins ask their services themselves")),
    key("error_template_*", Nothing("bodies of errors are Kong's own")),
    key("role", Fixed(&["traditional"], OF_CLUSTER)),
    key("cluster_*", Nothing(OF_CLUSTER)),
    key("privileged_agent", Nothing(OF_CLUSTER)),
    key("dedicated_config_processing", Nothing("the configuration is worked on beside the workers in any case")),
    key("proxy_listen", Sets(listen::proxy)),
    key("proxy_url", Nothing("nobody is told the address of the gateway")),
    key("stream_listen", Sets(listen::stream)),
    key("admin_listen", Sets(listen::admin)),
    key("admin_api_uri", Nothing(OF_MANAGER)),
    key("admin_gui_*", Nothing(OF_MANAGER)),
    key("status_listen", Sets(listen::status)),
    key("debug_listen", Fixed(&["off"], "there is no debug API")),
    key("debug_listen_local", Fixed(&["off"], "there is no debug API")),
    key("nginx_worker_processes", Sets(workers)),
    key("nginx_main_worker_processes", Sets(workers)),
    key("nginx_daemon", Fixed(&["off"], "the gateway stays in the foreground")),
    key("nginx_main_daemon", Fixed(&["off"], "the gateway stays in the foreground")),
    key("nginx_user", Nothing("the gateway runs as the user who starts it")),
    key("nginx_main_user", Nothing("the gateway runs as the user who starts it")),
    key("nginx_http_client_max_body_size", Sets(body_size)),
    key("nginx_proxy_client_max_body_size", Sets(body_size)),
    key("nginx_http_keepalive_requests", Sets(|value, given| given.set("limits.requests_per_connection", value))),
    key("nginx_proxy_keepalive_requests", Sets(|value, given| given.set("limits.requests_per_connection", value))),
    key("nginx_http_keepalive_timeout", Sets(|value, given| given.set("timeouts.idle", seconds(value)))),
    key("nginx_proxy_keepalive_timeout", Sets(|value, given| given.set("timeouts.idle", seconds(value)))),
    key(
        "nginx_http_client_body_buffer_size",
        Nothing("bodies are streamed; those that plugins need whole are limits.buffered_body"),
    ),
    key("nginx_proxy_real_ip_header", Sets(|value, given| given.set("real_ip.header", value))),
    key("nginx_proxy_set_real_ip_from", Sets(trusted)),
    key("nginx_proxy_real_ip_recursive", Sets(recursive)),
    key("nginx_*", Nothing(OF_NGINX)),
    key("port_maps", Nothing("X-Forwarded-Port is the port that a client has reached, or that a trusted proxy names")),
    key("trusted_ips", Sets(trusted)),
    key("real_ip_header", Sets(|value, given| given.set("real_ip.header", value))),
    key("real_ip_recursive", Sets(recursive)),
    key(
        "error_default_type",
        Fixed(&["text/plain"], "an error that nginx would make is text/plain where a client asks for nothing"),
    ),
    key("upstream_keepalive_pool_size", Fixed(&["512"], OF_POOL)),
    key("upstream_keepalive_max_requests", Fixed(&["10000"], OF_POOL)),
    key("upstream_keepalive_idle_timeout", Fixed(&["60"], OF_POOL)),
    key("allow_debug_header", Fixed(&["off"], "Kong-Debug shows nothing: `weir explain` does")),
    key("headers", Sets(headers)),
    key("headers_upstream", Sets(|value, given| given.set("kong_answers.headers_upstream", none_where_off(value)))),
    key(
        "ssl_cipher_suite",
        Fixed(&["intermediate", "modern"], "cipher suites are those of TLS 1.3, and of TLS 1.2 with ECDHE and AEAD"),
    ),
    key("ssl_ciphers", Nothing("cipher suites are those of TLS 1.3, and of TLS 1.2 with ECDHE and AEAD")),
    key("ssl_protocols", Sets(protocols)),
    key("ssl_prefer_server_ciphers", Fixed(&["on"], "the gateway chooses")),
    key("ssl_dhparam", Nothing("no key exchange with finite fields is spoken")),
    key("ssl_session_tickets", Sets(|value, given| flag("tls.session_tickets", value, given))),
    key("ssl_session_timeout", Nothing("session tickets are valid for their own time")),
    key("ssl_session_cache_size", Nothing("sessions are resumed by tickets")),
    key("ssl_cert", Nothing(CERTIFICATES)),
    key("ssl_cert_key", Nothing(CERTIFICATES)),
    key("client_ssl", Fixed(&["off"], "a certificate for upstreams is client_certificate of a service")),
    key("client_ssl_cert", Nothing("a certificate for upstreams is client_certificate of a service")),
    key("client_ssl_cert_key", Nothing("a certificate for upstreams is client_certificate of a service")),
    key("admin_ssl_cert", Nothing(ADMIN_TLS)),
    key("admin_ssl_cert_key", Nothing(ADMIN_TLS)),
    key("status_ssl_cert", Nothing("the status API speaks no TLS")),
    key("status_ssl_cert_key", Nothing("the status API speaks no TLS")),
    key("debug_ssl_*", Nothing("there is no debug API")),
    key("lua_ssl_trusted_certificate", Sets(authorities)),
    key("lua_ssl_verify_depth", Nothing("chains are verified to their end")),
    key("lua_ssl_protocols", Nothing("TLS 1.2 and 1.3 are spoken with upstreams")),
    key("lua_*", Nothing(OF_LUA)),
    key("database", Sets(database)),
    key("declarative_config", Elsewhere),
    key("declarative_config_string", Nothing("the document is in a file: declarative_config")),
    key("pg_*", Nothing(OF_DATABASE)),
    key("cassandra_*", Nothing(OF_DATABASE)),
    key("db_*", Nothing(OF_DATABASE)),
    key("dns_resolver", Sets(|value, given| given.set("dns.servers", value))),
    key("resolver_address", Sets(|value, given| given.set("dns.servers", value))),
    key("dns_hostsfile", Sets(|value, given| given.set("dns.hosts", value))),
    key("resolver_hosts_file", Sets(|value, given| given.set("dns.hosts", value))),
    key("dns_*", Nothing(OF_DNS)),
    key("resolver_*", Nothing(OF_DNS)),
    key("new_dns_client", Nothing(OF_DNS)),
    key("legacy_worker_events", Nothing("workers are threads of one process")),
    key("worker_consistency", Fixed(&["strict"], "a change is in force on every worker when it is answered")),
    key("worker_state_update_frequency", Nothing("a change is in force on every worker when it is answered")),
    key(
        "router_flavor",
        Fixed(
            &["traditional_compatible", "expressions"],
            "routes are ordered as with traditional_compatible; those with an expression come first",
        ),
    ),
    key("mem_cache_size", Nothing("there is no cache of entities: all are in memory")),
    key("consistent_hashing_algorithm", Nothing("rings are made by nginx's algorithm")),
    key("untrusted_lua*", Nothing(OF_LUA)),
    key("openresty_path", Nothing(OF_NGINX)),
    key("node_id", Nothing("the id of a node is made at its start")),
    key("request_debug*", Nothing("there is no request debugging: `weir explain` tells what a request meets")),
    key("tracing_instrumentations", Fixed(&["off"], OF_TRACING)),
    key("tracing_sampling_rate", Nothing(OF_TRACING)),
    key("opentelemetry_tracing*", Nothing(OF_TRACING)),
    key("wasm*", Nothing("there are no WebAssembly filters")),
    key("license_*", Nothing("no licence is needed")),
    key("enforce_rbac", Nothing("the Admin API is guarded by keys: admin.key")),
    key("rbac*", Nothing("the Admin API is guarded by keys: admin.key")),
    key("vitals*", Nothing("metrics are at the status API and listen.metrics")),
    key("portal*", Nothing("there is no developer portal")),
    key("smtp*", Nothing("no mail is sent")),
    key("audit_log*", Nothing("changes are listed by `weir store history`")),
    key("konnect_mode", Fixed(&["off"], OF_CLUSTER)),
    key("stream_proxy_ssl_*", Nothing("TLS towards upstreams of streams is that of their services")),
    key("max_queued_batches", Nothing("queues of plugins have bounds of their own: reports.memory")),
];

/// nginx's levels above `error` are errors, and `notice` is information.
fn log_level(value: &str, given: &mut Given) {
    let level = match value {
        "debug" => "debug",
        "info" | "notice" => "info",
        "warn" => "warn",
        "error" | "crit" | "alert" | "emerg" => "error",
        _ => return given.fail("one of debug, info, notice, warn, error, crit, alert, emerg"),
    };
    given.set("error_log.level", level);
}

/// Without a database entities come from a file, or as a whole over the Admin API.
fn database(value: &str, given: &mut Given) {
    match value {
        "off" => given.set("deployment.config_provider", "yaml"),
        "postgres" => {}
        _ => given.fail("off or postgres"),
    }
}

fn access_log(value: &str, given: &mut Given) {
    log_path("access_log.path", value, given);
}

fn stream_access_log(value: &str, given: &mut Given) {
    log_path("stream_access_log.path", value, given);
}

fn log_path(setting: &'static str, value: &str, given: &mut Given) {
    let mut words = value.split_whitespace();
    let path = match words.next().unwrap_or_default() {
        "off" => "off",
        "/dev/stdout" => "stdout",
        path if path.starts_with('/') => path,
        path => return given.doubt(format!("{path} is below Kong's prefix: write an absolute path, or off")),
    };
    if words.next().is_some() {
        given.doubt("the format is a setting: access_log.format");
    }
    given.set(setting, path);
}

fn error_log(value: &str, given: &mut Given) {
    match value.split_whitespace().next().unwrap_or_default() {
        "/dev/stderr" | "stderr" => given.set("error_log.path", "stderr"),
        path if path.starts_with('/') => given.set("error_log.path", path),
        path => given.doubt(format!("{path} is below Kong's prefix: write an absolute path, or /dev/stderr")),
    }
}

fn workers(value: &str, given: &mut Given) {
    given.set("workers", value);
}

fn body_size(value: &str, given: &mut Given) {
    given.set("limits.body_size", value.to_ascii_lowercase());
}

/// nginx's times: seconds, with an optional unit; a second value is that of a field for old clients.
fn seconds(value: &str) -> String {
    value.split_whitespace().next().unwrap_or_default().to_owned()
}

fn trusted(value: &str, given: &mut Given) {
    given.set("real_ip.trusted", value);
    given.set("trusted_proxies", value);
    given.set("proxy_protocol.trusted", value);
}

fn recursive(value: &str, given: &mut Given) {
    flag("real_ip.recursive", value, given);
}

fn flag(setting: &'static str, value: &str, given: &mut Given) {
    match value {
        "on" | "true" => given.set(setting, "true"),
        "off" | "false" => given.set(setting, "false"),
        _ => given.fail("on or off"),
    }
}

/// Key `headers`. Without `Server` or `server_tokens` among them, no other server's name stands in that field either.
fn headers(value: &str, given: &mut Given) {
    given.set("kong_answers.headers", none_where_off(value));
    let mut names = value.split(',').map(str::trim);
    if !names.any(|name| matches!(name, "server_tokens" | "Server")) {
        given.set("server_header", "");
    }
}

fn none_where_off(value: &str) -> &str {
    if value == "off" { "" } else { value }
}

fn protocols(value: &str, given: &mut Given) {
    let (spoken, old): (Vec<&str>, Vec<&str>) =
        value.split_whitespace().partition(|version| matches!(*version, "TLSv1.2" | "TLSv1.3"));
    if !old.is_empty() {
        given.doubt(format!("{} is not spoken", old.join(" and ")));
    }
    if !spoken.is_empty() {
        given.set("tls.protocols", spoken.join(","));
    }
}

fn authorities(value: &str, given: &mut Given) {
    let mut all = value.split(',').map(str::trim).filter(|path| !path.is_empty());
    if let Some(first) = all.next() {
        given.set("tls.trusted_certificate", first);
    }
    all.for_each(|other| given.doubt(format!("{other}: there is one file of authorities")));
}
