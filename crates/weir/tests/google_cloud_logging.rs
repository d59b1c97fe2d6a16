//! google-cloud-logging. There is no package of Google's service: an origin takes the place of both its servers, as their
//! documentation describes them, and openssl verifies the assertions.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::{Answer, Authority, Gateway, Kind, LIMIT, Nginx, Origin, Reload, free_port, wait_until};
use crate::reports::{await_reports, rules};
use crate::tokens::openssl;

/// Both servers of Google, and an account with its key.
pub(crate) struct Google {
    pub(crate) origin: Origin,
    key: String,
    /// Seconds for which a token is good.
    good: Arc<AtomicU64>,
    /// Status of the answer to a batch.
    status: Arc<AtomicU16>,
}

impl Google {
    pub(crate) fn start() -> Self {
        let (good, status) = (Arc::new(AtomicU64::new(3600)), Arc::new(AtomicU16::new(200)));
        let (given, answered, number) = (Arc::clone(&good), Arc::clone(&status), AtomicU64::new(0));
        let origin = Origin::answering(move |request| match request.target.as_str() {
            "/token" => {
                let token = format!("token-{}", number.fetch_add(1, SeqCst) + 1);
                let answer = json!({ "access_token": token, "token_type": "Bearer", "expires_in": given.load(SeqCst) });
                Answer::ok(&answer.to_string())
            }
            _ => Answer::status(answered.load(SeqCst), "{}"),
        });
        let key = openssl(&["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"], b"");
        Self { origin, key: String::from_utf8(key).expect("PEM"), good, status }
    }

    /// The account, as it stands in `auth_config`.
    pub(crate) fn account(&self) -> Value {
        self.account_at(&format!("http://{}", self.origin.node()))
    }

    fn account_at(&self, server: &str) -> Value {
        json!({
            "client_email": "me@p-1.test", "project_id": "p-1", "private_key": self.key,
            "token_uri": format!("{server}/token"), "entries_uri": format!("{server}/v2/entries:write"),
        })
    }

    /// Tokens that batches came with, and their entries.
    fn batches(&self) -> Vec<(String, Vec<Value>)> {
        let all = self.origin.complete().into_iter().filter(|request| request.target == "/v2/entries:write");
        all.map(|request| (request.field("authorization").unwrap_or_default().to_owned(), entries(&request.body)))
            .collect()
    }

    fn await_batches(&self, count: usize) -> Vec<(String, Vec<Value>)> {
        wait_until(&format!("{count} batches"), LIMIT, || Some(self.batches()).filter(|all| all.len() >= count))
    }

    /// The claims of each assertion, whose signatures are verified.
    fn claims(&self) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("public"), openssl(&["pkey", "-pubout"], self.key.as_bytes())).expect("write a key");
        let asked = self.origin.complete().into_iter().filter(|request| request.target == "/token");
        let claims = asked.map(|request| {
            assert_eq!(request.field("content-type"), Some("application/x-www-form-urlencoded"));
            let form = String::from_utf8(request.body).expect("a form");
            let assertion = form
                .strip_prefix("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=")
                .unwrap_or_else(|| panic!("no grant: {form}"));
            let (signed, signature) = assertion.rsplit_once('.').expect("a signature");
            let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).expect("base64url");
            fs::write(at("signature"), decode(signature)).expect("write a signature");
            openssl(&["dgst", "-sha256", "-verify", &at("public"), "-signature", &at("signature")], signed.as_bytes());
            let (header, claims) = signed.split_once('.').expect("a header");
            let read = |part: &str| serde_json::from_slice::<Value>(&decode(part)).expect("JSON");
            assert_eq!(read(header), json!({ "alg": "RS256", "typ": "JWT" }));
            read(claims)
        });
        claims.collect()
    }
}

/// The entries of a request; a form has none.
pub(crate) fn entries(body: &[u8]) -> Vec<Value> {
    if body.starts_with(b"grant_type") {
        return Vec::new();
    }
    let body: Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(body["partialSuccess"], false);
    body["entries"].as_array().expect("entries").clone()
}

fn conf(account: &Value, more: Value) -> Value {
    let mut conf = json!({ "auth_config": account, "batch_max_size": 1 });
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.as_object_mut().expect("an object").extend(more);
    conf
}

const PLUGIN: &str = "google-cloud-logging";

#[test]
fn entries_as_google_takes_them() {
    let (origin, google) = (Origin::hello(), Google::start());
    let resource = json!({ "type": "gce_instance", "labels": { "zone": "z" } });
    let more = json!({ "resource": resource, "log_id": "shop%2Fa", "batch_max_size": 2 });
    let gateway = Gateway::start(rules(&origin.node(), PLUGIN, &conf(&google.account(), more)));
    for path in ["/1?a=b", "/2"] {
        gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nUser-Agent: me\r\n\r\n"));
    }
    let (token, entries) = google.await_batches(1).remove(0);
    assert_eq!((token.as_str(), entries.len()), ("Bearer token-1", 2));
    let entry = &entries[0];
    let request = &entry["httpRequest"];
    assert_eq!(request["requestUrl"], format!("http://a.test:{}/1?a=b", gateway.addr.port()));
    let names = ["requestMethod", "userAgent", "remoteIp", "serverIp"].map(|name| request[name].as_str());
    assert_eq!(names, [Some("GET"), Some("me"), Some("127.0.0.1"), Some(origin.node().as_str())]);
    assert_eq!(request["status"], 200);
    assert!(["requestSize", "responseSize"].iter().all(|name| request[*name].as_u64() > Some(50)), "{request}");
    let latency = request["latency"].as_str().and_then(|text| text.strip_suffix('s')).expect("seconds");
    assert!(latency.split_once('.').is_some_and(|(_, part)| part.len() == 3) && latency.parse::<f64>().is_ok());
    assert_eq!(entry["jsonPayload"], json!({ "route_id": "all", "service_id": "" }));
    assert_eq!(entry["labels"], json!({ "source": "apache-apisix-google-cloud-logging" }));
    assert_eq!((&entry["resource"], &entry["logName"]), (&resource, &json!("projects/p-1/logs/shop%2Fa")));
    assert!(entry["timestamp"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')), "{entry}");
    assert!(entry["insertId"].as_str().is_some_and(|id| id.len() == 32), "{entry}");
    assert_ne!(entry["insertId"], entries[1]["insertId"]);
    let claims = google.claims().remove(0);
    let scopes = ["logging.read", "logging.write", "logging.admin", "cloud-platform"];
    let scopes = scopes.map(|scope| format!("https://www.googleapis.com/auth/{scope}")).join(" ");
    let node = google.origin.node();
    assert_eq!((&claims["iss"], &claims["scope"]), (&json!("me@p-1.test"), &json!(scopes)));
    assert_eq!(claims["aud"], format!("http://{node}/token"));
    let [from, to] = ["iat", "exp"].map(|name| claims[name].as_u64().expect("a time"));
    assert!(from > 1_700_000_000 && to == from + 3600, "{claims}");
    // The account in a file, as Google makes it; and defaults of the rest.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("account.json");
    let mut account = google.account();
    account["type"] = json!("service_account");
    account["scope"] = json!("one two");
    fs::write(&file, account.to_string()).expect("write a file");
    let conf = json!({ "auth_file": file.display().to_string(), "batch_max_size": 1 });
    assert_eq!(gateway.reload(rules(&origin.node(), PLUGIN, &conf)), Reload::Applied);
    gateway.get("/");
    let (token, entries) = google.await_batches(2).remove(1);
    assert_eq!((token.as_str(), &entries[0]["resource"]), ("Bearer token-2", &json!({ "type": "global" })));
    assert_eq!(entries[0]["logName"], "projects/p-1/logs/apisix.apache.org%2Flogs");
    assert_eq!(google.claims()[1]["scope"], "one two");
    await_reports(&gateway, PLUGIN, "sent", 3);
    for (text, says) in [("{", "account.json"), ("{\"client_email\":\"a\"}", "private_key")] {
        fs::write(&file, text).expect("write a file");
        let mut other = conf.clone();
        other["log_id"] = json!(text.len().to_string());
        assert_eq!(gateway.reload(rules(&origin.node(), PLUGIN, &other)), Reload::Rejected);
        gateway.logged(says);
    }
}

#[test]
fn formats_of_ones_own() {
    let (origin, google) = (Origin::hello(), Google::start());
    let mut account = google.account();
    account["scopes"] = json!(["only"]);
    let with = |more: Value, metadata: Value| {
        let mut rules = rules(&origin.node(), PLUGIN, &conf(&account, more));
        rules["plugin_metadata"] = json!([metadata]);
        rules
    };
    let id = json!({ "id": PLUGIN });
    let format = json!({ "id": PLUGIN, "log_format": { "uri": "$uri" } });
    let extra = json!({ "id": PLUGIN, "log_format_extra": { "host": "$host", "service_id": "mine" } });
    let gateway = Gateway::start(with(json!({ "log_format": { "method": "$request_method" } }), id.clone()));
    let cases = [
        (None, json!({ "method": "GET", "route_id": "all" })),
        (Some((json!({}), format)), json!({ "uri": "/", "route_id": "all" })),
        (Some((json!({}), extra)), json!({ "route_id": "all", "service_id": "mine", "host": "a.test" })),
        (
            Some((json!({ "log_format_extra": { "x": "y" } }), id)),
            json!({ "route_id": "all", "service_id": "", "x": "y" }),
        ),
    ];
    for (at, (change, payload)) in cases.into_iter().enumerate() {
        let has_request = at > 1;
        if let Some((more, metadata)) = change {
            assert_eq!(gateway.reload(with(more, metadata)), Reload::Applied);
        }
        assert_eq!(gateway.get("/").status, 200);
        let (token, entries) = google.await_batches(at + 1).remove(at);
        assert_eq!((token.as_str(), &entries[0]["jsonPayload"]), ("Bearer token-1", &payload), "one token for all");
        assert_eq!(entries[0].get("httpRequest").is_some(), has_request, "{}", entries[0]);
    }
    assert_eq!(google.claims()[0]["scope"], "only");
}

#[test]
fn a_token_serves_until_it_is_old_or_refused() {
    let (origin, google) = (Origin::hello(), Google::start());
    google.good.store(60, SeqCst);
    let gateway = Gateway::start(rules(&origin.node(), PLUGIN, &conf(&google.account(), json!({}))));
    let send = |count: usize, status: u16| {
        google.status.store(status, SeqCst);
        assert_eq!(gateway.get("/").status, 200);
        google.await_batches(count).pop().expect("a batch").0
    };
    assert_eq!([send(1, 200), send(2, 200)], ["Bearer token-1", "Bearer token-2"], "the last minute does not count");
    google.good.store(3600, SeqCst);
    assert_eq!([send(3, 200), send(4, 500)], ["Bearer token-3", "Bearer token-3"]);
    await_reports(&gateway, PLUGIN, "dropped", 1);
    assert_eq!(send(5, 401), "Bearer token-3");
    await_reports(&gateway, PLUGIN, "dropped", 2);
    assert_eq!(send(6, 200), "Bearer token-4");
    await_reports(&gateway, PLUGIN, "sent", 4);
}

#[test]
fn servers_that_fail() {
    let (origin, google) = (Origin::hello(), Google::start());
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let authority = Authority::new();
    let own = authority.certificate(Kind::P256, &["localhost"]);
    let nginx = Nginx::start_tls(&format!(
        "ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 '{{\"access_token\":\"t\"}}'; }}",
        own.cert_file.display(),
        own.key_file.display()
    ));
    let secure = format!("https://localhost:{}", nginx.node().rsplit(':').next().expect("a port"));
    let gateway = Gateway::start(rules(&origin.node(), PLUGIN, &conf(&google.account_at(&nobody), json!({}))));
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, PLUGIN, "dropped", 1);
    gateway.logged("no token of ");
    let mut without_entries = google.account();
    without_entries["entries_uri"] = json!(nobody);
    let mut without_token = google.account();
    without_token["token_uri"] = json!(format!("http://{}/none", google.origin.node()));
    let secured = google.account_at(&secure);
    for (number, (account, more)) in
        [(&without_entries, json!({})), (&without_token, json!({})), (&secured, json!({}))].into_iter().enumerate()
    {
        assert_eq!(gateway.reload(rules(&origin.node(), PLUGIN, &conf(account, more))), Reload::Applied);
        assert_eq!(gateway.get("/").status, 200);
        await_reports(&gateway, PLUGIN, "dropped", number + 2);
    }
    gateway.logged("the answer holds none");
    let trusting = conf(&secured, json!({ "ssl_verify": false }));
    assert_eq!(gateway.reload(rules(&origin.node(), PLUGIN, &trusting)), Reload::Applied);
    assert_eq!(gateway.get("/").status, 200);
    await_reports(&gateway, PLUGIN, "sent", 1);
}
