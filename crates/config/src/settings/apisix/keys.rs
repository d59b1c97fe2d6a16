//! The table: every key of `config.yaml`, in the order in which APISIX's own file has them.

use super::readers::{
    access_log, admin, admin_keys, admin_tls, config_provider, connections, control, dev_mode, error_log,
    http_listeners, https_listeners, listeners, log_escape, log_level, metrics_server, on_off, one_or_several, plugins,
    protocols, real_ip_from, real_ip_header, same, shared_config_provider, status, time,
};
use super::{ConfigKey, Effect, Reader};

const fn sets(path: &'static str, settings: &'static [&'static str], read: Reader, note: &'static str) -> ConfigKey {
    ConfigKey { path, effect: Effect::Sets(settings, read), note }
}

/// The same value, under another name.
const fn is(path: &'static str, settings: &'static [&'static str]) -> ConfigKey {
    sets(path, settings, same, "")
}

const fn always(path: &'static str, value: &'static str, note: &'static str) -> ConfigKey {
    ConfigKey { path, effect: Effect::Always(value), note }
}

const fn nothing(path: &'static str, note: &'static str) -> ConfigKey {
    ConfigKey { path, effect: Effect::Nothing, note }
}

const NO_LUA: &str = "there is no Lua here";
const NO_NGINX: &str = "it is text for nginx's configuration, and there is no nginx here";
const NO_STREAM: &str = "TCP and UDP are not proxied yet";
const NO_ETCD_OF_2: &str = "that is the form of APISIX 2; it is `deployment.etcd` now";
const NO_MEMORY_ZONES: &str = "memory is not set aside in zones; what is kept has limits of its own, see `limits`";
const NO_HTTP2: &str = "HTTP/2 is not spoken yet";
const NO_CACHE: &str = "the plugin proxy-cache is not supported yet";
const NO_DISCOVERY: &str = "service discovery is not supported yet";
const NO_PLUGIN: &str = "the plugin is not supported yet";
const NO_NGINX_LIMIT: &str = "nothing here has a limit of this kind";

/// Every key that APISIX's `config.yaml` may have, and some that older ones had.
#[rustfmt::skip]
pub const KEYS: &[ConfigKey] = &[
    sets("apisix.node_listen", &["listen.http"], http_listeners, "a port without an `ip` is that of 0.0.0.0, and of [::] too where `enable_ipv6` is `true`"),
    sets("apisix.enable_admin", &["listen.admin"], admin, "`false` turns it off; `true` leaves the address to `deployment.admin.admin_listen`"),
    sets("apisix.enable_dev_mode", &["workers"], dev_mode, "`true` makes it one worker"),
    always("apisix.enable_reuseport", "true", "each worker has a socket of its own in any case"),
    is("apisix.show_upstream_status_in_response_header", &["show_upstream_status_in_response_header"]),
    sets("apisix.enable_ipv6", &["listen.http", "listen.https"], listeners, "`true` adds [::] to listeners without an `ip`; IPv6 addresses of nodes are used in any case. Where it is not written, nothing listens at [::]"),
    always("apisix.enable_http2", "false", NO_HTTP2),
    sets("apisix.proxy_protocol.listen_http_port", &["listen.http", "proxy_protocol.trusted"], listeners, "headers are believed from `nginx_config.http.real_ip_from`; give `proxy_protocol.trusted` for others"),
    sets("apisix.proxy_protocol.listen_https_port", &["listen.https", "proxy_protocol.trusted"], listeners, "as with `listen_http_port`"),
    nothing("apisix.proxy_protocol.enable_tcp_pp", NO_STREAM),
    nothing("apisix.proxy_protocol.enable_tcp_pp_to_upstream", NO_STREAM),
    always("apisix.enable_server_tokens", "false", "`Server` never tells a version; `server_header` says what it tells"),
    nothing("apisix.extra_lua_path", NO_LUA),
    nothing("apisix.extra_lua_cpath", NO_LUA),
    nothing("apisix.lua_module_hook", NO_LUA),
    nothing("apisix.proxy_cache", NO_CACHE),
    is("apisix.delete_uri_tail_slash", &["uri.delete_tail_slash"]),
    is("apisix.normalize_uri_like_servlet", &["uri.normalize_like_servlet"]),
    is("apisix.match_uri_encoded_slash", &["uri.match_encoded_slash"]),
    is("apisix.router.http", &["router"]),
    always("apisix.router.ssl", "radixtree_sni", "certificates are chosen by the name that clients ask for, and nothing else"),
    always("apisix.proxy_mode", "http", NO_STREAM),
    nothing("apisix.stream_proxy", NO_STREAM),
    is("apisix.dns_resolver", &["dns.servers"]),
    sets("apisix.dns_resolver_valid", &["dns.min_ttl", "dns.max_ttl"], time, "seconds"),
    sets("apisix.resolver_timeout", &["dns.timeout"], time, "seconds"),
    always("apisix.enable_resolv_search_opt", "true", "search domains of `dns.resolv_conf` are used in any case"),
    sets("apisix.ssl.enable", &["listen.https"], https_listeners, "`false` opens no port for TLS"),
    sets("apisix.ssl.listen", &["listen.https"], https_listeners, "as `node_listen`"),
    sets("apisix.ssl.listen_port", &["listen.https"], https_listeners, "the form of APISIX 2"),
    is("apisix.ssl.ssl_trusted_certificate", &["tls.trusted_certificate"]),
    sets("apisix.ssl.ssl_protocols", &["tls.protocols"], protocols, "TLSv1.1 and what is older is not spoken"),
    nothing("apisix.ssl.ssl_ciphers", "cipher suites are those of TLS 1.3, and for TLS 1.2 those with ECDHE and AES-GCM or ChaCha20; there are no others to choose"),
    is("apisix.ssl.ssl_session_tickets", &["tls.session_tickets"]),
    is("apisix.ssl.fallback_sni", &["tls.fallback_sni"]),
    nothing("apisix.ssl.key_encrypt_salt", "that is the form of APISIX 2; it is `apisix.data_encryption.keyring` now"),
    sets("apisix.enable_control", &["listen.control"], control, "`false` turns it off; `true` leaves the address to `control`"),
    sets("apisix.control.ip", &["listen.control"], control, ""),
    sets("apisix.control.port", &["listen.control"], control, ""),
    nothing("apisix.control.router", "the control API has a port of its own"),
    nothing("apisix.disable_sync_configuration_during_start", "nothing listens before there is a configuration"),
    nothing("apisix.worker_startup_time_threshold", "workers are threads, which are not started anew"),
    sets("apisix.data_encryption.enable_encrypt_fields", &["deployment.etcd.data_encryption.enable_encrypt_fields"], same, ""),
    sets("apisix.data_encryption.keyring", &["deployment.etcd.data_encryption.keyring"], one_or_several, "a list or one key; for what lies in etcd; the embedded store has a key of its own"),
    nothing("apisix.data_encryption.enable", "that is the form of APISIX 3.0; it is `enable_encrypt_fields` now"),
    nothing("apisix.events", "workers share memory and need no module to tell each other of events"),
    sets("apisix.status.ip", &["listen.status"], status, ""),
    sets("apisix.status.port", &["listen.status"], status, ""),
    always("apisix.disable_upstream_healthcheck", "false", "checks are turned off by taking `checks` from an upstream"),
    is("apisix.trusted_addresses", &["trusted_proxies"]),
    sets("apisix.lru.secret.ttl", &["secrets.ttl"], time, "seconds"),
    nothing("apisix.lru.secret.count", "every secret that is in use is kept"),
    nothing("apisix.tracing", "there are no spans of the gateway's own parts"),
    nothing("apisix.id", "nodes are told apart by the host name in metrics"),
    nothing("apisix.config_center", "that is the form of APISIX 2; it is `deployment.role` and `config_provider` now"),
    nothing("apisix.admin_key", "that is the form of APISIX 2; it is `deployment.admin.admin_key` now"),
    nothing("apisix.allow_admin", "that is the form of APISIX 2; it is `deployment.admin.allow_admin` now"),
    nothing("apisix.port_admin", "that is the form of APISIX 2; it is `deployment.admin.admin_listen` now"),
    nothing("apisix.https_admin", "that is the form of APISIX 2; it is `deployment.admin.https_admin` now"),
    nothing("apisix.admin_listen", "that is the form of APISIX 2; it is `deployment.admin.admin_listen` now"),
    nothing("apisix.admin_api_mtls", "that is the form of APISIX 2; it is `deployment.admin.admin_api_mtls` now"),
    nothing("apisix.admin_api_version", "that is the form of APISIX 2; the Admin API speaks version 3"),
    nothing("apisix.enable_admin_cors", "that is the form of APISIX 2; it is `deployment.admin.enable_admin_cors` now"),
    nothing("apisix.enable_debug", "the error log tells details with `error_log.level: debug`"),
    nothing("apisix.real_ip_header", "that is the form of APISIX 2; it is `nginx_config.http.real_ip_header` now"),

    nothing("nginx_config.user", "the process keeps the user that starts it; with systemd it is `User=`"),
    sets("nginx_config.error_log", &["error_log.path"], error_log, "a relative path begins where the process was started"),
    sets("nginx_config.error_log_level", &["error_log.level"], log_level, "`notice` is `info`; `crit`, `alert` and `emerg` are `error`"),
    is("nginx_config.worker_processes", &["workers"]),
    always("nginx_config.enable_cpu_affinity", "false", "workers are not bound to cores: the kernel moves them where there is room"),
    nothing("nginx_config.worker_rlimit_nofile", "the gateway takes as many as it may have, which is the hard limit of the process"),
    sets("nginx_config.worker_shutdown_timeout", &["timeouts.drain"], time, ""),
    nothing("nginx_config.max_pending_timers", NO_NGINX_LIMIT),
    nothing("nginx_config.max_running_timers", NO_NGINX_LIMIT),
    sets("nginx_config.event.worker_connections", &["limits.connections"], connections, "times `worker_processes`; connections to nodes do not count"),
    nothing("nginx_config.envs", "every variable of the environment can be used"),
    nothing("nginx_config.meta.lua_shared_dict", NO_MEMORY_ZONES),
    nothing("nginx_config.stream", NO_STREAM),
    nothing("nginx_config.main_configuration_snippet", NO_NGINX),
    nothing("nginx_config.http_configuration_snippet", NO_NGINX),
    nothing("nginx_config.http_server_configuration_snippet", NO_NGINX),
    nothing("nginx_config.http_server_location_configuration_snippet", NO_NGINX),
    nothing("nginx_config.http_admin_configuration_snippet", NO_NGINX),
    nothing("nginx_config.http_end_configuration_snippet", NO_NGINX),
    nothing("nginx_config.stream_configuration_snippet", NO_NGINX),
    sets("nginx_config.http.enable_access_log", &["access_log.path"], access_log, "`false` turns it off"),
    sets("nginx_config.http.access_log", &["access_log.path"], access_log, "a relative path begins where the process was started; `logs/access.log` where only the form is given"),
    nothing("nginx_config.http.access_log_buffer", "lines are written as soon as the log's thread sees them; `access_log.buffer` bounds what waits"),
    sets("nginx_config.http.access_log_format", &["access_log.format"], access_log, "`$remote_user` is the consumer; nginx's variables that are not supported yet are written as `-`, and named at start"),
    sets("nginx_config.http.access_log_format_escape", &["access_log.escape"], log_escape, "`none` has no effect: a client could forge lines"),
    sets("nginx_config.http.keepalive_timeout", &["timeouts.idle"], time, ""),
    sets("nginx_config.http.client_header_timeout", &["timeouts.head"], time, ""),
    sets("nginx_config.http.client_body_timeout", &["timeouts.body"], time, ""),
    is("nginx_config.http.client_max_body_size", &["limits.body_size"]),
    sets("nginx_config.http.send_timeout", &["timeouts.send"], time, ""),
    always("nginx_config.http.underscores_in_headers", "on", "fields with underscores in their names are taken like others"),
    sets("nginx_config.http.real_ip_header", &["real_ip.header"], real_ip_header, "`proxy_protocol` leaves the address to the header of listeners that have one"),
    sets("nginx_config.http.real_ip_recursive", &["real_ip.recursive"], on_off, ""),
    sets("nginx_config.http.real_ip_from", &["real_ip.trusted"], real_ip_from, "`unix:` is left out: clients of a Unix socket have no address that could be replaced"),
    nothing("nginx_config.http.custom_lua_shared_dict", NO_LUA),
    always("nginx_config.http.proxy_ssl_server_name", "true", "nodes are always told the name that is asked for"),
    is("nginx_config.http.upstream.keepalive", &["limits.upstream_idle_connections"]),
    nothing("nginx_config.http.upstream.keepalive_requests", "it is `keepalive_pool.requests` of an upstream, 1000 by default"),
    nothing("nginx_config.http.upstream.keepalive_timeout", "it is `keepalive_pool.idle_timeout` of an upstream, 60 s by default"),
    nothing("nginx_config.http.charset", "`Content-Type` is left as it is"),
    nothing("nginx_config.http.variables_hash_max_size", "names of variables are not looked up while requests are served"),
    nothing("nginx_config.http.lua_shared_dict", NO_MEMORY_ZONES),

    nothing("discovery", NO_DISCOVERY),
    nothing("graphql.max_size", "requests are not matched by GraphQL yet"),
    nothing("ext-plugin", "plugins in other programs are not supported yet"),
    sets("plugins", &["plugins"], plugins, "a plugin that is not in the list is refused; those that the gateway does not have are named at start"),
    nothing("stream_plugins", NO_STREAM),
    nothing("wasm", "plugins in WebAssembly are not supported yet"),
    nothing("xrpc", NO_STREAM),

    nothing("plugin_attr.log-rotate", "logs are rotated by logrotate or systemd: SIGUSR1 opens them anew"),
    nothing("plugin_attr.skywalking", NO_PLUGIN),
    nothing("plugin_attr.opentelemetry", NO_PLUGIN),
    is("plugin_attr.prometheus.export_uri", &["metrics.path"]),
    sets("plugin_attr.prometheus.metric_prefix", &["metrics.prefix"], same, ""),
    sets("plugin_attr.prometheus.enable_export_server", &["listen.metrics"], metrics_server, "`false` turns it off"),
    sets("plugin_attr.prometheus.export_addr.ip", &["listen.metrics"], metrics_server, ""),
    sets("plugin_attr.prometheus.export_addr.port", &["listen.metrics"], metrics_server, ""),
    nothing("plugin_attr.prometheus.refresh_interval", "metrics are summed up when they are asked for"),
    nothing("plugin_attr.prometheus.metrics", "labels are those of APISIX without additions, and series stay"),
    nothing("plugin_attr.prometheus.default_buckets", "histograms have APISIX's own buckets"),
    nothing("plugin_attr.server-info", NO_PLUGIN),
    nothing("plugin_attr.dubbo-proxy", NO_PLUGIN),
    nothing("plugin_attr.proxy-mirror", "a copy has the timeouts of its route's upstream"),
    is("plugin_attr.redirect.https_port", &["redirect.https_port"]),
    nothing("plugin_attr.inspect", NO_LUA),
    nothing("plugin_attr.zipkin", NO_PLUGIN),

    is("deployment.role", &["deployment.role"]),
    sets("deployment.role_traditional.config_provider", &["deployment.config_provider"], config_provider, "that of the `role`; `yaml` and `json` are the rules file on the command line, or without one the Admin API with the whole configuration"),
    sets("deployment.role_control_plane.config_provider", &["deployment.config_provider"], config_provider, "as with `role_traditional`"),
    sets("deployment.role_data_plane.config_provider", &["deployment.config_provider"], config_provider, "as with `role_traditional`"),
    nothing("deployment.role_control_plane.conf_server", "data planes ask etcd, not the control plane"),
    nothing("deployment.role_data_plane.control_plane", "data planes ask etcd, not the control plane"),
    nothing("deployment.certs", "data planes ask etcd, not the control plane; its certificates are `deployment.etcd.tls`"),
    sets("deployment.config_provider", &["deployment.config_provider"], shared_config_provider, "that of the `role` takes precedence, as in APISIX; without either it is etcd where `deployment.etcd` is set and there is no rules file"),
    sets("deployment.admin.admin_listen.ip", &["listen.admin"], admin, ""),
    sets("deployment.admin.admin_listen.port", &["listen.admin"], admin, ""),
    sets("deployment.admin.admin_key", &["admin.key", "viewer.key", "admin.keys"], admin_keys, "the first key of each role is `admin.key` or `viewer.key`, further ones are `admin.keys`; an empty key is one that is made at the first start"),
    is("deployment.admin.admin_key_required", &["admin.key_required"]),
    is("deployment.admin.allow_admin", &["admin.allow"]),
    is("deployment.admin.enable_admin_cors", &["admin.cors"]),
    nothing("deployment.admin.enable_admin_ui", "the folder of a dashboard is the setting `admin.ui`"),
    sets("deployment.admin.https_admin", &["admin.tls.cert", "admin.tls.key", "admin.tls.client_ca"], admin_tls, "`true` speaks TLS with what `admin_api_mtls` names"),
    sets("deployment.admin.admin_api_mtls.admin_ssl_cert", &["admin.tls.cert"], admin_tls, "where `https_admin` is `true`"),
    sets("deployment.admin.admin_api_mtls.admin_ssl_cert_key", &["admin.tls.key"], admin_tls, "where `https_admin` is `true`"),
    sets("deployment.admin.admin_api_mtls.admin_ssl_ca_cert", &["admin.tls.client_ca"], admin_tls, "where `https_admin` is `true`"),
    always("deployment.admin.admin_api_version", "v3", "the Admin API speaks version 3 alone"),
    is("deployment.etcd.host", &["deployment.etcd.host"]),
    is("deployment.etcd.prefix", &["deployment.etcd.prefix"]),
    is("deployment.etcd.timeout", &["deployment.etcd.timeout"]),
    is("deployment.etcd.watch_timeout", &["deployment.etcd.watch_timeout"]),
    is("deployment.etcd.resync_delay", &["deployment.etcd.resync_delay"]),
    nothing("deployment.etcd.health_check_timeout", "a member that does not answer is left for the next one at once"),
    is("deployment.etcd.health_check_interval", &["deployment.etcd.health_check_interval"]),
    is("deployment.etcd.startup_retry", &["deployment.etcd.startup_retry"]),
    nothing("deployment.etcd.use_grpc", "etcd is asked in the one way the gateway knows"),
    is("deployment.etcd.user", &["deployment.etcd.user"]),
    is("deployment.etcd.password", &["deployment.etcd.password"]),
    is("deployment.etcd.tls.ca", &["deployment.etcd.tls.ca"]),
    is("deployment.etcd.tls.cert", &["deployment.etcd.tls.cert"]),
    is("deployment.etcd.tls.key", &["deployment.etcd.tls.key"]),
    is("deployment.etcd.tls.verify", &["deployment.etcd.tls.verify"]),
    is("deployment.etcd.tls.sni", &["deployment.etcd.tls.sni"]),
    is("deployment.etcd.data_encryption", &["deployment.etcd.data_encryption"]),
    nothing("etcd", NO_ETCD_OF_2),
];
