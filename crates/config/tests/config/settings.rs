//! The gateway's own settings: file, environment, flags.

use std::time::Duration;

use weir_config::settings::{AccessLogFormat, AccessLogPath, Endpoint, LogLevel, SettingsSource, Workers, leaves};
use weir_config::{Diagnostic, RouterMode, Settings};

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn pairs(list: Pairs<'_>) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read(text: &str, variables: Pairs<'_>, flags: Pairs<'_>) -> Result<(Settings, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (variables, flags) = (pairs(variables), pairs(flags));
    let file = (!text.is_empty()).then_some(("weir.yaml", text));
    Settings::load(SettingsSource { file, variables: &variables, flags: &flags, below: &[] })
}

fn good(text: &str, variables: Pairs<'_>, flags: Pairs<'_>) -> Settings {
    match read(text, variables, flags) {
        Ok((mut settings, found)) => {
            assert!(found.is_empty(), "{found:?}");
            // True of whatever names the section, also with defaults.
            settings.deployment.etcd_is_set = false;
            settings
        }
        Err(found) => panic!("{found:?}"),
    }
}

fn errors(text: &str, variables: Pairs<'_>, flags: Pairs<'_>) -> Vec<String> {
    let found = read(text, variables, flags).expect_err("settings that are wrong");
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn nothing_at_all_gives_the_defaults() {
    let settings = good("", &[], &[]);
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.listen.http[0].to_string(), "0.0.0.0:9080");
    assert_eq!(settings.listen.metrics.to_string(), "127.0.0.1:9091");
    assert_eq!(settings.listen.status.to_string(), "127.0.0.1:7085");
    assert_eq!(settings.limits.head_size.bytes(), 65536);
    assert_eq!(settings.timeouts.idle.duration(), Duration::from_secs(75));
    assert_eq!(settings.server_header.value(), Some("weir"));
    assert_eq!(good("# nothing\n", &[], &[]), settings);
}

#[test]
fn a_later_source_goes_before_an_earlier_one() {
    let file = "listen: {http: [\"127.0.0.1:1\"], metrics: off}\nworkers: 2\nlimits: {head_size: 16KiB, body_size: 1000}\ntimeouts: {head: 0.5}\n";
    let variables =
        [("WEIR_WORKERS", "3"), ("WEIR_LIMITS_BODY_SIZE", "2MiB"), ("HOME", "/root"), ("WEIR_LISTEN_STATUS", "0")];
    let settings =
        good(file, &variables, &[("workers", "4"), ("listen.http", "[::1]:0"), ("listen.http", "9080, 9081")]);
    assert_eq!(settings.workers.to_string(), "4");
    let listen: Vec<String> = settings.listen.http.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["[::1]:0", "0.0.0.0:9080", "0.0.0.0:9081"]);
    assert_eq!(settings.listen.metrics, Endpoint::Off);
    assert_eq!(settings.listen.status.to_string(), "0.0.0.0:0");
    assert_eq!((settings.limits.head_size.bytes(), settings.limits.body_size.bytes()), (16384, 2 << 20));
    assert_eq!(settings.timeouts.head.duration(), Duration::from_millis(500));
    assert_eq!(settings.limits.header_count, 128, "what no source names keeps its default");
}

#[test]
fn a_listener_is_an_address_or_a_mapping() {
    let text = "\
listen:
  http:
    - 9080
    - \"[::]:9081\"
    - unix:/run/weir.sock
    - {address: \"127.0.0.1:9082\", proxy_protocol: true}
    - {address: unix:/run/weir 2.sock, mode: \"0660\", proxy_protocol: true}
proxy_protocol: {trusted: [10.0.0.0/8]}
";
    let settings = good(text, &[], &[]);
    let seen: Vec<_> = settings.listen.http.iter().map(|l| (l.to_string(), l.proxy_protocol, l.mode.bits())).collect();
    let expected = [
        ("0.0.0.0:9080", false, 0o666),
        ("[::]:9081", false, 0o666),
        ("unix:/run/weir.sock", false, 0o666),
        ("127.0.0.1:9082", true, 0o666),
        ("unix:/run/weir 2.sock", true, 0o660),
    ];
    assert_eq!(seen, expected.map(|(address, proxy, mode)| (address.to_owned(), proxy, mode)));
    let again = serde_json::to_string(&settings).expect("JSON");
    assert_eq!(good(&again, &[], &[]), settings, "{again}");

    let list = r#"[{"address": "unix:/a", "mode": "600"}, 0]"#;
    for (variables, flags) in [(&[("WEIR_LISTEN_HTTP", list)][..], &[][..]), (&[], &[("listen.http", list)])] {
        let seen: Vec<_> =
            good("", variables, flags).listen.http.iter().map(|l| (l.to_string(), l.mode.bits())).collect();
        assert_eq!(seen, [("unix:/a".to_owned(), 0o600), ("0.0.0.0:0".to_owned(), 0o666)]);
    }
    let plain = good("", &[("WEIR_LISTEN_HTTP", "unix:/run/weir.sock, 9080")], &[]);
    assert_eq!(plain.listen.http[0].address.unix(), Some(std::path::Path::new("/run/weir.sock")));
}

#[test]
fn every_kind_of_value_can_come_from_the_environment() {
    let settings = good(
        "",
        &[
            ("WEIR_ROUTER", "radixtree_uri_with_parameter"),
            ("WEIR_WORKERS", "auto"),
            ("WEIR_URI_DELETE_TAIL_SLASH", "true"),
            ("WEIR_TIMEOUTS_DRAIN", "1.5"),
            ("WEIR_TIMEOUTS_SEND", "500ms"),
            ("WEIR_TIMEOUTS_BODY", "2m"),
            ("WEIR_LISTEN_METRICS", "off"),
            ("WEIR_TRUSTED_PROXIES", "10.0.0.0/8, ::1"),
            ("WEIR_REAL_IP_TRUSTED", "[\"127.0.0.1\", fd00::/8]"),
            ("WEIR_REAL_IP_HEADER", "X-Forwarded-For"),
            ("WEIR_ACCESS_LOG_PATH", "/var/log/weir.log"),
            ("WEIR_ACCESS_LOG_FORMAT", "$remote_addr ${status}"),
            ("WEIR_ERROR_LOG_LEVEL", "debug"),
            ("WEIR_SERVER_HEADER", ""),
            ("WEIR_DNS_SERVERS", "10.0.0.2,[fd00::2]:5353"),
            ("WEIR_METRICS_PATH", "/123"),
        ],
        &[],
    );
    assert_eq!(settings.router, RouterMode::RadixtreeUriWithParameter);
    assert_eq!(settings.workers, Workers::Auto);
    assert!(settings.uri.delete_tail_slash);
    let times =
        [settings.timeouts.drain.duration(), settings.timeouts.send.duration(), settings.timeouts.body.duration()];
    assert_eq!(times.map(|time| time.as_millis()), [1500, 500, 120_000]);
    let addresses: Vec<String> =
        settings.trusted_proxies.iter().chain(&settings.real_ip.trusted).map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.0/8", "::1", "127.0.0.1", "fd00::/8"]);
    assert_eq!(settings.access_log.path, AccessLogPath::File("/var/log/weir.log".into()));
    assert_eq!(settings.access_log.format, AccessLogFormat::Template("$remote_addr ${status}".into()));
    assert_eq!((settings.error_log.level, settings.server_header.value()), (LogLevel::Debug, None));
    let servers: Vec<String> = settings.dns.servers.iter().map(|server| server.0.to_string()).collect();
    assert_eq!(servers, ["10.0.0.2:53", "[fd00::2]:5353"]);
}

#[test]
fn what_is_wrong_is_named_with_its_source() {
    let cases: &[(&str, Pairs<'_>, Pairs<'_>, &[&str])] = &[
        (
            "limits:\n  head_sise: 1\n",
            &[],
            &[],
            &["weir.yaml:2:3: limits.head_sise: unknown field; did you mean head_size?"],
        ),
        (
            "workers: 0\nlimits: {head_size: 1, header_count: 7}\ntimeouts: {head: 0, idle: 5 days}\n",
            &[],
            &[],
            &["weir.yaml:2:38: limits.header_count: expected an integer from 8 to 4096, found 7"],
        ),
        (
            "workers: 1025\n",
            &[],
            &[],
            &["weir.yaml:1:10: workers: expected auto or an integer from 1 to 1024, found 1025"],
        ),
        (
            "timeouts: {idle: 5 days}\n",
            &[],
            &[],
            &["weir.yaml:1:18: timeouts.idle: expected a time from 100ms to 24h, found \"5 days\""],
        ),
        (
            "limits: {head_size: 1}\n",
            &[],
            &[],
            &["weir.yaml:1:21: limits.head_size: expected a size from 1KiB to 1MiB, found 1"],
        ),
        (
            "listen: {http: []}\n",
            &[],
            &[],
            &["weir.yaml:1:16: listen.http: expected a list of 1 to 64 elements, found an empty list"],
        ),
        (
            "listen: {http: [example:80]}\n",
            &[],
            &[],
            &[
                "weir.yaml:1:17: listen.http[0]: expected ADDRESS:PORT such as 127.0.0.1:9080, [::1]:9080 or localhost:9080, a port alone, or unix:/PATH, found \"example:80\"",
            ],
        ),
        (
            "listen: {http: [\"unix:weir.sock\", \"unix:/a/\"]}\n",
            &[],
            &[],
            &["weir.yaml:1:17: listen.http[0]: the path of a Unix socket must be absolute, such as unix:/run/app.sock"],
        ),
        (
            "listen:\n  http:\n    - {address: 9080, mode: \"0660\"}\n",
            &[],
            &[],
            &["weir.yaml:3:7: listen.http[0]: `mode` is for a Unix socket, and this is none"],
        ),
        (
            "listen:\n  http:\n    - {address: \"unix:/a\", mode: 660}\n    - {proxy: true}\n    - {address: \"unix:/a\", mode: \"0888\"}\n",
            &[],
            &[],
            &[
                "weir.yaml:3:34: listen.http[0].mode: expected octal permissions as a text: \"0660\", found 660; put it in quotes",
                "weir.yaml:4:8: listen.http[1].proxy: unknown field; known fields: address, proxy_protocol, http2, tls, mode",
                "weir.yaml:4:7: listen.http[1]: the field address is missing",
                "weir.yaml:5:34: listen.http[2].mode: expected octal permissions as a text: \"0660\", found \"0888\"",
            ],
        ),
        (
            "listen: {http: [9080, {address: 9081, proxy_protocol: true}]}\n",
            &[],
            &[],
            &[
                "weir.yaml: listen.http[1].proxy_protocol: every connection would be closed: proxy_protocol.trusted has to name who may send a header",
            ],
        ),
        (
            "router: radix\n",
            &[],
            &[],
            &[
                "weir.yaml:1:9: router: expected one of radixtree_host_uri, radixtree_uri, radixtree_uri_with_parameter, found \"radix\"",
            ],
        ),
        (
            "error_log: {level: warning}\n",
            &[],
            &[],
            &["weir.yaml:1:20: error_log.level: expected one of error, warn, info, debug, trace, found \"warning\""],
        ),
        (
            "dns: {min_ttl: 10, max_ttl: 5}\n",
            &[],
            &[],
            &["weir.yaml: dns.min_ttl: dns.min_ttl must not be longer than dns.max_ttl"],
        ),
        (
            "trusted_proxies: [10.0.0.0/99]\n",
            &[],
            &[],
            &[
                "weir.yaml:1:19: trusted_proxies[0]: expected an IPv4 or IPv6 address, or a range of them such as 10.0.0.0/8, found \"10.0.0.0/99\"",
            ],
        ),
        ("workers: 1\nworkers: 2\n", &[], &[], &["weir.yaml:2:1: workers: the same key stands at 1:1 already"]),
        (
            "workers: 1\n---\n",
            &[],
            &[],
            &["weir.yaml:2:1: a second YAML document begins here; a settings file has one"],
        ),
        ("workers: [1\n", &[], &[], &["weir.yaml:2:1: workers[1]: not YAML: "]),
        ("[]", &[], &[], &["weir.yaml:1:1: expected a mapping, found an empty list"]),
        ("workers: ${{N}}\n", &[], &[], &["weir.yaml:1:10: workers: the environment variable N is not set; "]),
        (
            "",
            &[("WEIR_WORKER", "1")],
            &[],
            &["WEIR_WORKER: there is no setting for this environment variable; did you mean WEIR_WORKERS?"],
        ),
        (
            "",
            &[("WEIR_WORKERS", "many")],
            &[],
            &["WEIR_WORKERS: workers: expected auto or an integer from 1 to 1024, found \"many\""],
        ),
        (
            "",
            &[("WEIR_LISTEN_HTTP", "")],
            &[],
            &["WEIR_LISTEN_HTTP: listen.http: expected a list of 1 to 64 elements, found an empty list"],
        ),
        (
            "",
            &[("WEIR_TRUSTED_PROXIES", "[a]")],
            &[],
            &[
                "WEIR_TRUSTED_PROXIES: trusted_proxies[0]: expected an IPv4 or IPv6 address, or a range of them such as 10.0.0.0/8, found \"a\"",
            ],
        ),
        (
            "",
            &[],
            &[("limits.hed_size", "1")],
            &["command line: limits.hed_size: there is no such setting; did you mean limits.head_size?"],
        ),
        (
            "",
            &[],
            &[("limits.head_size", "2MiB")],
            &["command line: limits.head_size: expected a size from 1KiB to 1MiB, found \"2MiB\""],
        ),
    ];
    for (text, variables, flags, expected) in cases {
        let said = errors(text, variables, flags);
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        let same = said.len() == expected.len()
            && said.iter().zip(*expected).all(|(said, expected)| crate::support::is_said(expected, said));
        assert!(same, "{text:?} {variables:?} {flags:?}:\n  {said:#?}\n  {expected:#?}");
    }
}

#[test]
fn a_rules_file_is_no_settings_file() {
    let said = errors("routes: []\n", &[], &[]);
    assert_eq!(said, ["weir.yaml:1:1: routes: not a settings file: this is a rules file"]);
}

#[test]
fn groups_without_settings_are_warned_about() {
    let (settings, found) = read("limits:\ntimeouts:\n  head:\n", &[], &[]).expect("settings");
    assert_eq!(settings, Settings::default());
    let said: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "weir.yaml:1:1: warning: limits: null is taken as not set",
            "weir.yaml:3:3: warning: timeouts.head: null is taken as not set"
        ]
    );
}

#[test]
fn every_setting_can_be_given_as_its_own_default() {
    let defaults = serde_json::to_value(Settings::default()).expect("settings are JSON");
    let mut count = 0;
    for leaf in leaves() {
        let default = defaults.pointer(&format!("/{}", leaf.path.replace('.', "/"))).expect("a default for each leaf");
        let text = match default {
            serde_json::Value::Array(items) => {
                items.iter().map(|item| item.as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
            }
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        assert_eq!(good("", &[(&leaf.variable, &text)], &[]), Settings::default(), "{}={text}", leaf.variable);
        assert_eq!(good("", &[], &[(&leaf.path, &text)]), Settings::default(), "{} {text}", leaf.path);
        assert!(leaf.schema.get("description").is_some(), "{} says what it is", leaf.path);
        count += 1;
    }
    let names: std::collections::HashSet<&str> = leaves().iter().map(|leaf| leaf.variable.as_str()).collect();
    assert_eq!(names.len(), count, "no two settings share a variable");
    let file = serde_json::to_string(&Settings::default()).expect("settings are JSON");
    assert_eq!(good(&file, &[], &[]), Settings::default());
}

#[test]
fn clients_are_sent_to_the_port_that_listens_for_tls() {
    for (text, port) in [
        ("{}", 9443),
        ("listen: {https: []}", 443),
        ("listen: {https: [8443, 9443]}", 8443),
        ("listen: {https: [\"unix:/run/weir\", \"127.0.0.1:0\", 9443]}", 9443),
        ("redirect: {https_port: 443}", 443),
        ("{listen: {https: [8443]}, redirect: {https_port: 444}}", 444),
    ] {
        let node = weir_config::Node::parse(text).expect("YAML");
        let settings: Settings = node.root.parse_into().expect("settings");
        assert_eq!(settings.https_port(), port, "{text}");
    }
}

#[test]
fn addresses_are_written_as_people_write_them() {
    let cases = [
        ("127.0.0.1:9080", Some("127.0.0.1:9080")),
        ("[::1]:9080", Some("[::1]:9080")),
        ("9080", Some("0.0.0.0:9080")),
        (":9080", Some("0.0.0.0:9080")),
        ("localhost:9080", Some("127.0.0.1:9080")),
        ("localhost", None),
        ("localhost:", None),
        ("localhost:http", None),
        ("localhost:65536", None),
        ("example.com:80", None),
        ("::1", None),
        ("127.0.0.1", None),
    ];
    for (text, expected) in cases {
        for setting in ["listen.http", "listen.metrics", "listen.admin"] {
            let flags = [(setting.to_owned(), text.to_owned())];
            let loaded = Settings::load(SettingsSource { flags: &flags, ..SettingsSource::default() });
            let found = loaded.ok().map(|(settings, _)| match setting {
                "listen.http" => settings.listen.http[0].address.to_string(),
                "listen.metrics" => settings.listen.metrics.to_string(),
                _ => settings.listen.admin.to_string(),
            });
            assert_eq!(found.as_deref(), expected, "{setting}={text}");
        }
    }
}
