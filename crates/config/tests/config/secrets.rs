//! References to secret managers.

use weir_config::{InvalidItems, LoadOptions, Loaded, Manager, NoSecret, NoSecrets, SecretSource, load};

use crate::support::OPTIONS;

/// Knows a few secrets, and who was asked.
struct Known;

impl SecretSource for Known {
    fn fetch(&self, reference: &str, manager: Manager<'_>, key: &str) -> Result<String, NoSecret> {
        assert!(reference.ends_with(&format!("/{key}")), "{reference} {key}");
        let asked = match manager {
            Manager::Vault { uri, prefix, token, namespace } => {
                format!("{uri} {prefix} {} {}", token.reveal(), namespace.unwrap_or("-"))
            }
            Manager::File(directory) => directory.display().to_string(),
        };
        match key {
            "jack/key" | "db/password" => Ok(format!("{key} of {asked}")),
            "number" => Ok("7".to_owned()),
            "forbidden" => Err(NoSecret::Refused("it is forbidden".to_owned())),
            _ => Err(NoSecret::Absent("nobody knows it".to_owned())),
        }
    }

    fn last(&self, reference: &str) -> Option<String> {
        (reference == "file/k8s/gone").then(|| "the last value".to_owned())
    }
}

const MANAGERS: &str = "\
secrets:
  - {id: vault/1, uri: 'http://127.0.0.1:8200', prefix: kv/apisix, token: $env://TOKEN}
  - {id: vault/n, uri: 'https://v.test', prefix: kv, token: t, namespace: ns1, create_time: 1}
  - {id: file/k8s, directory: /run/secrets}
";

fn loaded(text: &str) -> Loaded {
    load_with(text, InvalidItems::Refuse)
}

fn load_with(text: &str, invalid_items: InvalidItems) -> Loaded {
    let variables = |name: &str| (name == "TOKEN").then(|| "hvs.t0ken".to_owned());
    let options = LoadOptions { variables: &variables, secrets: &Known, invalid_items, ..OPTIONS };
    load("t", format!("{text}#END\n").as_bytes(), &options)
}

#[test]
fn a_reference_stands_for_what_its_manager_says() {
    let cases = [
        ("$secret://vault/1/jack/key", "jack/key of http://127.0.0.1:8200 kv/apisix hvs.t0ken -"),
        ("$SECRET://vault/n/jack/key", "jack/key of https://v.test kv t ns1"),
        ("$secret://file/k8s/db/password", "db/password of /run/secrets"),
        ("not $secret://vault/1/jack/key", "not $secret://vault/1/jack/key"),
    ];
    for (reference, expected) in cases {
        let text =
            format!("{MANAGERS}consumers: [{{username: jack, plugins: {{key-auth: {{key: '{reference}'}}}}}}]\n");
        let loaded = loaded(&text);
        assert!(loaded.diagnostics.is_empty(), "{reference}: {:?}", loaded.diagnostics);
        let document = loaded.document.expect("a document");
        let conf = serde_json::to_value(&document.consumers[0].plugins).expect("JSON");
        assert_eq!(conf["key-auth"]["key"], expected, "{reference}");
        assert_eq!(document.secrets.len(), 3);
    }
}

/// Wherever the value has to be, as one that nobody knows shows.
#[test]
fn references_may_stand_for_all_that_is_secret() {
    let pair = "client_cert: $secret://file/k8s/none, client_key: $env://NONE";
    let key_auth = "plugins: {key-auth: {key: $env://NONE}}";
    let upstream = format!("{{scheme: https, nodes: {{127.0.0.1: 1}}, tls: {{{pair}}}}}");
    let cases = [
        (format!("upstreams: [{upstream}]"), "upstreams[0].tls", vec!["client_cert", "client_key"]),
        (
            format!("routes: [{{uri: /, upstream: {upstream}}}]"),
            "routes[0].upstream.tls",
            vec!["client_cert", "client_key"],
        ),
        (
            format!("services: [{{upstream: {upstream}}}]"),
            "services[0].upstream.tls",
            vec!["client_cert", "client_key"],
        ),
        (
            "ssls: [{sni: a.test, cert: $env://NONE, key: $env://NONE, certs: [$env://NONE], keys: [$env://NONE]}]"
                .to_owned(),
            "ssls[0]",
            vec!["cert", "key", "certs[0]", "keys[0]"],
        ),
        (
            "ssls: [{sni: a.test, cert: $env://NONE, key: $env://NONE, client: {ca: $env://NONE}}]".to_owned(),
            "ssls[0]",
            vec!["cert", "key", "client.ca"],
        ),
        (format!("routes: [{{uri: /, {key_auth}}}]"), "routes[0].plugins.key-auth", vec!["key"]),
        (format!("services: [{{{key_auth}}}]"), "services[0].plugins.key-auth", vec!["key"]),
        (format!("plugin_configs: [{{{key_auth}}}]"), "plugin_configs[0].plugins.key-auth", vec!["key"]),
        (format!("global_rules: [{{{key_auth}}}]"), "global_rules[0].plugins.key-auth", vec!["key"]),
        (format!("consumer_groups: [{{{key_auth}}}]"), "consumer_groups[0].plugins.key-auth", vec!["key"]),
        (format!("consumers: [{{username: a, {key_auth}}}]"), "consumers[0].plugins.key-auth", vec!["key"]),
        (
            format!("consumers: [{{username: a, credentials: [{{{key_auth}}}]}}]"),
            "consumers[0].credentials[0].plugins.key-auth",
            vec!["key"],
        ),
        (
            format!("consumers: [{{username: a}}, {{id: a/credentials/c, {key_auth}}}]"),
            "consumers[1].plugins.key-auth",
            vec!["key"],
        ),
        ("plugin_metadata: [{id: mocking, a: [{b: $env://NONE}]}]".to_owned(), "plugin_metadata[0]", vec!["a[0].b"]),
    ];
    for (text, place, fields) in cases {
        let loaded = loaded(&format!("{MANAGERS}{text}\n"));
        let unknown = loaded
            .warnings()
            .filter(|found| found.message().contains("is not set") || found.message().contains("nobody knows it"));
        let mut paths: Vec<String> = unknown.map(|found| found.path.clone()).collect();
        let mut expected: Vec<String> = fields.into_iter().map(|name| format!("{place}.{name}")).collect();
        paths.sort_unstable();
        expected.sort_unstable();
        assert_eq!(paths, expected, "{text}: {:?}", loaded.diagnostics);
        assert!(loaded.document.is_some(), "{text}: {:?}", loaded.diagnostics);
    }
}

/// A reference without a value yet is taken, with a warning of the effect meanwhile.
#[test]
fn what_is_not_there_is_waited_for() {
    let none = "the environment variable \"NONE\" is not set; until it is there, ";
    let reference =
        |item: &str| format!("routes: [{{uri: /, plugins: {{mocking: {{response_example: '{item}'}}}}}}]\n");
    let key_auth = "plugins: {key-auth: {key: $env://NONE}}";
    let cases = [
        (
            reference("$secret://vault/1/other/key"),
            "no secret for \"$secret://vault/1/other/key\": nobody knows it; until it is there, requests for which mocking runs \
             are answered 503"
                .to_owned(),
        ),
        (
            reference("$secret://vault/2/jack/key"),
            "there is no valid item \"vault/2\" in `secrets`; until it is there, ".to_owned(),
        ),
        (reference("$secret://file/k8s/gone"), "nobody knows it; its last value serves on".to_owned()),
        (reference("$env://TOKEN/key"), "the environment variable TOKEN is not JSON".to_owned()),
        (format!("routes: [{{uri: /, {key_auth}}}]"), format!("{none}requests for which key-auth runs are answered 503")),
        (format!("global_rules: [{{{key_auth}}}]"), format!("{none}all requests are answered 503")),
        (
            format!("consumers: [{{username: a, {key_auth}}}]"),
            format!("{none}nobody is let in by this configuration of key-auth"),
        ),
        (
            "consumers: [{username: a, plugins: {mocking: {response_example: $env://NONE}}}]".to_owned(),
            format!("{none}the requests of this consumer are answered 503"),
        ),
        (
            "routes: [{uri: /, plugins: {mocking: {response_example: $env://NONE, _meta: {disable: true}}}}]".to_owned(),
            format!("{none}mocking cannot be switched on"),
        ),
        (
            "plugin_metadata: [{id: mocking, a: $env://NONE}]".to_owned(),
            format!("{none}requests for which mocking runs are answered 503"),
        ),
        (
            "ssls: [{sni: a.test, cert: $env://NONE, key: $env://NONE}]".to_owned(),
            format!("{none}TLS handshakes for its names are refused"),
        ),
        (
            "ssls: [{id: c, type: client, cert: $env://NONE, key: $env://NONE}]".to_owned(),
            format!("{none}requests to upstreams that it is shown to are answered 503"),
        ),
        (
            "secrets: [{id: vault/9, uri: 'http://v', prefix: kv, token: $env://NONE}]".to_owned(),
            format!("{none}no secret of this manager can be had"),
        ),
        (
            "secrets: [{id: vault/9, uri: 'http://v', prefix: kv, token: $env://NONE}]\n".to_owned()
                + &reference("$secret://vault/9/a/b"),
            "the token of \"vault/9\" is not there; until it is there, ".to_owned(),
        ),
    ];
    for (text, expected) in cases {
        let managers = if text.starts_with("secrets") { "" } else { MANAGERS };
        let loaded = loaded(&format!("{managers}{text}\n"));
        let found: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        assert!(loaded.errors().next().is_none() && loaded.document.is_some(), "{text}: {found:?}");
        assert!(found.iter().any(|one| one.contains(&expected)), "{text}: {expected}\n{found:#?}");
    }
    // Other errors are still reported.
    let loaded =
        loaded(&format!("{MANAGERS}routes: [{{uri: /, plugins: {{key-auth: {{key: 1, header: $env://NONE}}}}}}]\n"));
    assert!(loaded.warnings().next().is_some(), "{:?}", loaded.diagnostics);
}

#[test]
fn what_is_no_reference_refuses_the_change() {
    let cases = [
        ("$secret://vault/1/forbidden", "it is forbidden"),
        ("$secret://vault/1/", "expected $secret://MANAGER/ID/KEY"),
        ("$secret://vault/1", "expected $secret://MANAGER/ID/KEY"),
        ("$secret://", "expected $secret://MANAGER/ID/KEY"),
        ("$secret://aws/1/jack/key", "not supported yet: AWS Secrets Manager"),
        ("$secret://gcp/1/jack/key", "not supported yet: Google Cloud Secret Manager"),
        ("$secret://nowhere/1/jack/key", "there is no secret manager \"nowhere\"; there are vault and file"),
    ];
    for (reference, expected) in cases {
        let text =
            format!("{MANAGERS}consumers:\n- {{username: jack, plugins: {{key-auth: {{key: '{reference}'}}}}}}\n");
        let loaded_whole = loaded(&text);
        assert!(loaded_whole.document.is_none(), "{reference}");
        let found: Vec<String> = loaded_whole.errors().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("t:6:"), "{found:?}");
        assert!(found[0].contains("consumers[0].plugins.key-auth.key: ") && found[0].contains(expected), "{found:?}");
        // Left out, never let through.
        let skipping = load_with(&text, InvalidItems::Skip);
        assert!(skipping.document.expect("the rest").consumers.is_empty(), "{reference}");
    }
    let options = LoadOptions { secrets: &NoSecrets, ..OPTIONS };
    let text = "secrets: [{id: file/1, directory: /a}]\nroutes: [{uri: /, plugins: {cors: {allow_origins: $secret://file/1/x}}}]\n#END\n";
    let found = load("t", text.as_bytes(), &options).diagnostics;
    assert!(found.iter().any(|one| one.message().contains("no secret manager is asked here")), "{found:?}");
}

#[test]
fn an_invalid_manager_is_told() {
    let cases = [
        ("{id: vault/1, prefix: kv, token: t}", "secrets[0]: vault needs uri"),
        ("{id: vault/1, uri: 'http://v', token: t}", "secrets[0]: vault needs prefix"),
        ("{id: vault/1, uri: 'ftp://v', prefix: kv, token: t}", "secrets[0].uri: expected http://HOST:PORT"),
        (
            "{id: vault/1, uri: 'http://v/path?query', prefix: kv, token: t}",
            "secrets[0].uri: expected http://HOST:PORT",
        ),
        ("{id: vault/1, uri: 'http://v', prefix: 'k v', token: t}", "secrets[0].prefix: expected a path"),
        (
            "{id: vault/1, uri: 'http://v', prefix: kv, token: $secret://file/1/t}",
            "secrets[0].token: a token cannot be kept by a secret manager",
        ),
        (
            "{id: vault/1, uri: 'http://v', prefix: kv, token: t, directory: /a}",
            "secrets[0].directory: vault has no directory",
        ),
        ("{id: vault/1, uri: 'http://v', prefix: kv, token: t, tokn: t}", "secrets[0].tokn: unknown field"),
        ("{id: file/1}", "secrets[0]: file needs directory"),
        ("{id: file/1, directory: a}", "secrets[0].directory: expected an absolute path"),
        ("{id: file/1, directory: /a, token: t}", "secrets[0].token: file has no token"),
        (
            "{id: aws/1, access_key_id: a, secret_access_key: b}",
            "secrets[0].id: not supported yet: AWS Secrets Manager",
        ),
        ("{id: gcp/1, auth_file: f}", "secrets[0].id: not supported yet: Google Cloud Secret Manager"),
        (
            "{id: valut/1, uri: 'http://v'}",
            "secrets[0].id: there is no secret manager \"valut\"; there are vault and file",
        ),
        ("{id: '1', uri: 'http://v'}", "secrets[0].id: an item of secrets needs an id with the kind"),
        ("{uri: 'http://v', prefix: kv, token: t}", "secrets[0].id: an item of secrets needs an id with the kind"),
    ];
    for (item, expected) in cases {
        let loaded = loaded(&format!("secrets: [{item}]\n"));
        assert!(loaded.document.is_none(), "{item}");
        let found: Vec<String> = loaded.errors().map(ToString::to_string).collect();
        assert!(found.iter().any(|one| one.contains(expected)), "{item}: {found:?}");
        assert!(found.iter().all(|one| !one.contains("t0ken")), "{item}: {found:?}");
    }
}

#[test]
fn no_message_shows_a_value() {
    // The values are no lists, and each message names the type that it found.
    let text = format!(
        "{MANAGERS}routes: [{{uri: /, plugins: {{limit-count: {{count: $secret://vault/1/jack/key, time_window: $env://TOKEN}}}}}}]\n"
    );
    let loaded = loaded(&text);
    let found: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    assert!(!found.is_empty() && found.iter().all(|one| !one.contains("t0ken")), "{found:?}");
    assert!(found.iter().any(|one| one.contains("***")), "{found:?}");
    assert_eq!(format!("{:?}", loaded.revealed), "3 values");
}

/// A reference in a certificate is judged by its value alone: how long the reference is says nothing.
#[test]
fn what_is_wrong_with_a_reference_in_a_certificate_is_said_once() {
    let pem = |what: &str| format!("-----BEGIN {what}-----\\n{}\\n-----END {what}-----", "A".repeat(128));
    let (cert, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    let item = |cert: &str, key: &str| format!("ssls: [{{sni: a.test, cert: \"{cert}\", key: \"{key}\"}}]\n");
    let with_client =
        format!("ssls: [{{sni: a.test, cert: \"{cert}\", key: \"{key}\", client: {{ca: $env://NONE}}}}]\n");
    let of_upstream = "upstreams: [{id: u, nodes: {'a:1': 1}, scheme: https, tls: {client_cert: $env://TOKEN, client_key: $env://NONE}}]\n";
    for (text, expected) in [
        (
            item("$env://NONE", &key),
            &[
                "ssls[0].cert: the environment variable \"NONE\" is not set; until it is there, TLS handshakes for its names are refused",
            ][..],
        ),
        (
            item(&cert, "$env://NONE/k"),
            &[
                "ssls[0].key: the environment variable \"NONE\" is not set; until it is there, TLS handshakes for its names are refused",
            ],
        ),
        (item("$env://TOKEN", &key), &["ssls[0].cert: the value of \"$env://TOKEN\" is no PEM: expected -----BEGIN …"]),
        (
            item("$secret://vault/1/none", "$secret://vault/2/key"),
            &[
                "ssls[0].cert: no secret for \"$secret://vault/1/none\": nobody knows it; until it is there, TLS handshakes for its names are refused",
                "ssls[0].key: no secret for \"$secret://vault/2/key\": there is no valid item \"vault/2\" in `secrets`; until it is there, TLS handshakes for its names are refused",
            ],
        ),
        (
            item("$secret://vault/1/number", &key),
            &["ssls[0].cert: the value of \"$secret://vault/1/number\" is no PEM: expected -----BEGIN …"],
        ),
        (
            with_client,
            &[
                "ssls[0].client.ca: the environment variable \"NONE\" is not set; until it is there, TLS handshakes for its names are refused",
            ],
        ),
        (
            of_upstream.to_owned(),
            &[
                "upstreams[0].tls.client_cert: the value of \"$env://TOKEN\" is no PEM: expected -----BEGIN …",
                "upstreams[0].tls.client_key: the environment variable \"NONE\" is not set; until it is there, requests to this upstream are answered 503",
            ],
        ),
    ] {
        let loaded = loaded(&format!("{MANAGERS}{text}"));
        let said: Vec<String> =
            loaded.diagnostics.iter().map(|found| format!("{}: {}", found.path, found.message())).collect();
        assert_eq!(said, expected, "{text}");
    }
}
