//! Logins of users by `openid-connect`: with a real provider, from the first request to the logout, and with providers and
//! browsers that try what they must not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Process, RawClient, Response, Start, free_port, program, repository};
use crate::openid_connect::{Provider, jwk};
use crate::tokens::{Signer, now, openssl};

/// A real provider, and its port.
struct RealProvider {
    _process: Process,
    /// Held open: the provider writes notices.
    _output: BufReader<ChildStdout>,
    port: u16,
}

impl RealProvider {
    fn start() -> Self {
        Self::sending_back_to(&["http://app.test/callback", "http://app.test/in/.apisix/redirect"])
    }

    /// A provider that sends users back to these places.
    fn sending_back_to(places: &[&str]) -> Self {
        let module = repository().join("target/test-tools/node_modules/oidc-provider/lib/index.js");
        let script = repository().join("crates/weir/tests/harness/provider.mjs");
        let mut command = Command::new(program("node"));
        command.args([script, module]).args(places);
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut output = BufReader::new(process.child().stdout.take().expect("its output"));
        let lines = output.by_ref().lines().map_while(Result::ok);
        let ready = { lines }.find_map(|line| line.strip_prefix("ready ")?.parse().ok());
        let port = ready.expect("tools/install-test-deps installs the provider");
        Self { _process: process, _output: output, port }
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A browser: keeps cookies by host, and follows redirects.
struct Browser {
    /// Real addresses of hosts.
    hosts: Vec<(String, SocketAddr)>,
    cookies: BTreeMap<(String, String), String>,
    /// Every `Set-Cookie` of the gateway.
    set: Vec<String>,
}

impl Browser {
    fn new(gateway: &Gateway, provider: Option<&RealProvider>) -> Self {
        let mut hosts = vec![("app.test".to_owned(), gateway.addr)];
        hosts.extend(provider.map(|provider| (provider.host(), SocketAddr::from(([127, 0, 0, 1], provider.port)))));
        Self { hosts, cookies: BTreeMap::new(), set: Vec::new() }
    }

    /// One request, without what follows from it.
    fn request(&mut self, method: &str, uri: &str, form: &str) -> Response {
        let (host, path) = uri.strip_prefix("http://").expect("a URI").split_once('/').expect("a path");
        let addr = self.hosts.iter().find(|(name, _)| name == host).unwrap_or_else(|| panic!("{uri}: unknown")).1;
        let cookies = self.cookies.iter().filter(|((of, _), _)| of == host);
        let cookies: Vec<String> = cookies.map(|((_, name), value)| format!("{name}={value}")).collect();
        let mut head = format!("{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        if !cookies.is_empty() {
            head.push_str(&format!("Cookie: {}\r\n", cookies.join("; ")));
        }
        if method == "POST" {
            let length = form.len();
            head.push_str(&format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n"));
        }
        let response = RawClient::connect(addr).request(format!("{head}\r\n{form}"));
        for line in response.fields.all("set-cookie") {
            let (name, rest) = line.split_once('=').expect("a cookie");
            let value = rest.split(';').next().unwrap_or_default();
            let key = (host.to_owned(), name.to_owned());
            if value.is_empty() {
                self.cookies.remove(&key);
            } else {
                self.cookies.insert(key, value.to_owned());
            }
            if host == "app.test" {
                self.set.push(line.to_owned());
            }
        }
        response
    }

    fn get(&mut self, uri: &str) -> Response {
        self.request("GET", uri, "")
    }

    /// Follows redirects, and fills the forms of the provider as this user.
    fn follow(&mut self, first: Response, at: &str, user: &str) -> (String, Response) {
        let (mut uri, mut response) = (at.to_owned(), first);
        for _ in 0..20 {
            if let Some(location) = response.field("location") {
                uri = absolute(&uri, location);
                response = self.get(&uri);
                continue;
            }
            let page = response.text();
            let form = if page.contains("name=\"login\"") {
                format!("prompt=login&login={user}&password=x")
            } else if page.contains("value=\"consent\"") {
                "prompt=consent".to_owned()
            } else if let Some((_, rest)) = page.split_once("name=\"xsrf\" value=\"") {
                format!("xsrf={}&logout=yes", rest.split('"').next().expect("a value"))
            } else {
                return (uri, response);
            };
            let action = page.split("action=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a form");
            uri = absolute(&uri, action);
            response = self.request("POST", &uri, &form);
        }
        panic!("too many redirects: {uri}");
    }
}

fn absolute(base: &str, location: &str) -> String {
    if location.starts_with("http://") {
        return location.to_owned();
    }
    let host = base.strip_prefix("http://").and_then(|rest| rest.split('/').next()).expect("a host");
    format!("http://{host}{location}")
}

fn gateway(origin: &Origin, confs: &[(&str, Value)]) -> Gateway {
    let route = |(at, (uri, conf)): (usize, &(&str, Value))| {
        let upstream = json!({ "nodes": { (origin.node()): 1 } });
        json!({ "id": format!("r{at}"), "uri": uri, "upstream": upstream, "plugins": { "openid-connect": conf } })
    };
    Gateway::start(json!({ "routes": confs.iter().enumerate().map(route).collect::<Vec<_>>() }))
}

fn conf_of(provider: &RealProvider, more: Value) -> Value {
    with(
        json!({
            "client_id": "gateway", "client_secret": "the secret of the gateway", "use_pkce": true,
            "discovery": format!("http://{}/.well-known/openid-configuration", provider.host()),
            "session": { "secret": "a secret of sessions" }, "redirect_uri": "http://app.test/callback",
        }),
        more,
    )
}

fn with(mut conf: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields are an object") };
    conf.as_object_mut().expect("an object").extend(more);
    conf
}

fn decoded(field: Option<&str>) -> Value {
    let text = openssl(&["base64", "-d", "-A"], field.expect("a field").as_bytes());
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_user_logs_in_and_out() {
    let provider = RealProvider::start();
    let origin = Origin::echo();
    let conf = conf_of(
        &provider,
        json!({
            "scope": "openid email", "set_refresh_token_header": true, "authorization_params": { "ui_locales": "en" },
            "post_logout_redirect_uri": "/bye", "revoke_tokens_on_logout": true,
        }),
    );
    let deny = with(conf.clone(), json!({ "unauth_action": "deny" }));
    let pass = with(conf.clone(), json!({ "unauth_action": "pass" }));
    let gateway = gateway(&origin, &[("/*", conf), ("/deny", deny), ("/pass", pass)]);
    let mut browser = Browser::new(&gateway, Some(&provider));
    // Nobody has a session yet.
    assert_eq!(browser.get("http://app.test/deny").status, 401);
    assert_eq!(browser.get("http://app.test/pass").status, 200);
    assert_eq!(origin.last().field("x-userinfo"), None);
    let start = "http://app.test/shop?item=1&a=b%20c";
    let first = browser.get(start);
    assert_eq!((first.status, first.field("cache-control")), (302, Some("no-store")));
    let location = first.field("location").expect("a place").to_owned();
    for part in ["code_challenge_method=S256", "scope=openid%20email", "&nonce=", "&state=", "ui_locales=en"] {
        assert!(location.contains(part), "{part} in {location}");
    }
    let (at, last) = browser.follow(first, start, "jack");
    assert_eq!((at.as_str(), last.status), (start, 200), "{}", last.text());
    let asked = origin.last();
    assert_eq!(asked.target, "/shop?item=1&a=b%20c");
    assert_eq!(decoded(asked.field("x-id-token"))["sub"], "jack");
    assert_eq!(decoded(asked.field("x-userinfo"))["email"], "jack@example.test");
    assert!(asked.field("x-access-token").is_some() && asked.field("x-refresh-token").is_some());
    for cookie in &browser.set {
        assert!(cookie.contains("; HttpOnly; SameSite=Lax") && !cookie.contains("jack"), "{cookie}");
    }
    // The session serves, without the provider; a forged one does not.
    let seen = browser.set.len();
    assert_eq!(browser.get("http://app.test/deny").status, 200);
    assert_eq!(browser.set.len(), seen);
    let key = ("app.test".to_owned(), "session".to_owned());
    let good = browser.cookies[&key].clone();
    for forged in [good[..good.len() - 2].to_owned(), good.replacen("1.", "2.", 1), "1.AAAA".into(), "9.x".into()] {
        browser.cookies.insert(key.clone(), forged);
        assert_eq!(browser.get("http://app.test/deny").status, 401);
    }
    browser.cookies.insert(key.clone(), good);
    // Logout, here and there.
    let out = browser.get("http://app.test/logout");
    assert!(out.field("location").is_some_and(|to| to.contains("id_token_hint=")), "{out:?}");
    assert!(!browser.cookies.contains_key(&key));
    assert_eq!(browser.get("http://app.test/deny").status, 401);
    // The provider has forgotten jack as well: whoever comes back from it has to log in.
    let (at, last) = browser.follow(out, "http://app.test/logout", "jill");
    assert_eq!((at.as_str(), last.status), ("http://app.test/bye", 200));
    assert_eq!(decoded(origin.last().field("x-userinfo"))["sub"], "jill");
}

#[test]
fn people_log_in_to_the_dashboard_at_their_identity_provider() {
    let port = free_port();
    let dashboard = format!("http://127.0.0.1:{port}");
    let provider = RealProvider::sending_back_to(&[&format!("{dashboard}/weir/v1/session/oidc/callback")]);
    let settings = json!({
        "listen": { "admin": format!("127.0.0.1:{port}") },
        "admin": { "oidc": {
            "issuer": format!("http://{}", provider.host()), "client_id": "gateway",
            "client_secret": "the secret of the gateway", "public_url": dashboard, "scopes": ["openid", "email"],
            "role_claim": "email", "admins": ["jack@example.test"], "viewers": ["jill@example.test", "x"],
        }},
    });
    let gateway = Start::stored().admin_by_settings().settings(settings).start();
    let browser = || {
        let own = (format!("127.0.0.1:{port}"), SocketAddr::from(([127, 0, 0, 1], port)));
        let of_provider = (provider.host(), SocketAddr::from(([127, 0, 0, 1], provider.port)));
        Browser { hosts: vec![own, of_provider], cookies: BTreeMap::new(), set: Vec::new() }
    };
    let (begin, session) = (format!("{dashboard}/weir/v1/session/oidc"), format!("{dashboard}/weir/v1/session"));
    assert_eq!(browser().get(&session).json(), json!({ "authenticated": false, "oidc": true }));
    for (user, role) in [("jack", Some("admin")), ("jill", Some("viewer")), ("joe", None)] {
        let mut person = browser();
        let first = person.get(&begin);
        let location = first.field("location").expect("the provider").to_owned();
        assert_eq!((first.status, first.field("cache-control")), (302, Some("no-store")), "{first:?}");
        for part in ["code_challenge_method=S256", "&nonce=", "&state=", "response_type=code"] {
            assert!(location.contains(part), "{part} in {location}");
        }
        let cookie = first.field("set-cookie").expect("a cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Lax; Max-Age=600"), "{cookie}");
        // A browser that has not begun the login does not end it, whatever it was sent.
        let state = location.split("state=").nth(1).and_then(|rest| rest.split('&').next()).expect("a state");
        let mut other = browser();
        other.get(&begin);
        let stolen = other.get(&format!("{begin}/callback?state={state}&code=c"));
        assert!(stolen.status == 403 && stolen.text().contains("this browser has not begun it"), "{stolen:?}");
        let (at, last) = person.follow(first, &begin, user);
        let told = person.get(&session).json();
        let Some(role) = role else {
            assert!(last.status == 403 && last.text().contains("none of your roles in email"), "{last:?}");
            assert_eq!(told["authenticated"], false);
            continue;
        };
        assert_eq!((at, last.status), (format!("{dashboard}/"), 200), "{}", last.text());
        let name = format!("{user}@example.test");
        assert_eq!((&told["name"], &told["role"]), (&json!(name), &json!(role)), "{told}");
        assert_eq!(person.get(&format!("{dashboard}/weir/v1/history")).status, 200);
        // A code is good once.
        assert_eq!(person.get(&format!("{begin}/callback?state={state}&code=c")).status, 403);
    }
    drop(gateway);
    let none = Start::stored().start();
    let mut client = RawClient::connect(none.admin.expect("an Admin API"));
    let answer = client.request("GET /weir/v1/session/oidc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.status == 404 && answer.text().contains("admin.oidc"), "{answer:?}");
}

#[test]
fn access_tokens_are_renewed() {
    let provider = RealProvider::start();
    let origin = Origin::echo();
    // Every request finds the token at its end.
    let due = conf_of(&provider, json!({ "access_token_expires_leeway": 86_400 }));
    let never = with(due.clone(), json!({ "renew_access_token_on_expiry": false }));
    let gateway = gateway(&origin, &[("/*", due), ("/never", never)]);
    let mut browser = Browser::new(&gateway, Some(&provider));
    let first = browser.get("http://app.test/");
    let (_, last) = browser.follow(first, "http://app.test/", "jack");
    assert_eq!(last.status, 200);
    let mut tokens = vec![origin.last().field("x-access-token").expect("a token").to_owned()];
    for _ in 0..3 {
        assert_eq!(browser.get("http://app.test/").status, 200);
        tokens.push(origin.last().field("x-access-token").expect("a token").to_owned());
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 4, "each request has a new one");
    assert_eq!(browser.get("http://app.test/never").status, 200);
    assert_eq!(origin.last().field("x-access-token"), tokens.last().map(String::as_str));
}

#[test]
fn a_path_of_the_route_takes_the_answer() {
    let provider = RealProvider::start();
    let origin = Origin::echo();
    let mut conf = conf_of(&provider, json!({}));
    conf.as_object_mut().expect("an object").remove("redirect_uri");
    let gateway = gateway(&origin, &[("/in/*", conf.clone()), ("/in", conf)]);
    let mut browser = Browser::new(&gateway, Some(&provider));
    let first = browser.get("http://app.test/in");
    let (at, last) = browser.follow(first, "http://app.test/in", "jill");
    assert_eq!((at.as_str(), last.status), ("http://app.test/in", 200));
    assert_eq!(decoded(origin.last().field("x-userinfo"))["sub"], "jill");
}

/// The argument of a query.
fn argument(uri: &str, name: &str) -> String {
    let arguments = uri.split_once('?').expect("a query").1.split('&');
    arguments.filter_map(|one| one.split_once('=')).find(|(own, _)| *own == name).expect(name).1.to_owned()
}

#[test]
fn answers_that_fit_no_login_are_refused() {
    let (key, stranger) = (Signer::new("ES256"), Signer::new("ES256"));
    let provider = Provider::new(json!({ "keys": [jwk(&key, "k")] }));
    let origin = Origin::echo();
    let conf = json!({
        "client_id": "gateway", "client_secret": "a secret", "redirect_uri": "/callback",
        "discovery": format!("http://{}/discovery", provider.origin.node()),
        "session": { "secret": "a secret of sessions", "name": "s", "cookie": {
            "lifetime": 1000, "domain": "test", "path": "/", "samesite": "Strict", "secure": true } },
    });
    let gateway = gateway(&origin, &[("/*", conf)]);
    let asked = || provider.origin.requests().iter().filter(|request| request.target == "/tokens").count();
    // Begins a login, and comes back with `answer` behind its state and an ID token of these claims.
    let login = |browser: &mut Browser, signer: &Signer, changes: Value, answer: &str| {
        let first = browser.get("http://app.test//evil.test/x");
        let location = first.field("location").expect("a place").to_owned();
        assert!(location.starts_with("http://login.test/authorize?tenant=1&response_type=code&"), "{location}");
        assert_eq!(argument(&location, "redirect_uri"), "http%3A%2F%2Fapp.test%2Fcallback");
        let mut claims = json!({
            "iss": "http://issuer.test", "aud": "gateway", "sub": "jack", "exp": now().as_secs() + 600,
            "nonce": argument(&location, "nonce"),
        });
        let Value::Object(changes) = changes else { panic!("claims are an object") };
        claims.as_object_mut().expect("an object").extend(changes);
        let token = signer.token_with(&json!({ "alg": "ES256", "kid": "k" }), &claims);
        provider.say(|said| said.tokens = json!({ "access_token": "opaque", "id_token": token, "expires_in": 600 }));
        browser.get(&format!("http://app.test/callback?state={}{answer}", argument(&location, "state")))
    };
    let new = || Browser::new(&gateway, None);
    let mut browser = new();
    let done = login(&mut browser, &key, json!({}), "&code=c&iss=http%3A%2F%2Fissuer.test");
    assert_eq!(done.status, 302, "{}", done.text());
    // The user comes back to this host, whatever the path looks like.
    let location = done.field("location").expect("a place");
    assert!(location.starts_with('/') && !location.starts_with("//"), "{location}");
    let session = browser.set.iter().find(|cookie| cookie.starts_with("s=")).expect("a session");
    assert!(session.ends_with("; Path=/; Domain=test; HttpOnly; SameSite=Strict; Secure"), "{session}");
    assert_eq!(browser.get("http://app.test/x").status, 200);
    assert_eq!(decoded(origin.last().field("x-id-token"))["sub"], "jack");
    for (what, signer, changes, answer) in [
        ("another's key", &stranger, json!({}), "&code=c"),
        ("another issuer", &key, json!({ "iss": "http://other.test" }), "&code=c"),
        ("another client", &key, json!({ "aud": "other" }), "&code=c"),
        ("another party", &key, json!({ "aud": ["gateway", "other"], "azp": "other" }), "&code=c"),
        ("another login", &key, json!({ "nonce": "n" }), "&code=c"),
        ("no nonce", &key, json!({ "nonce": null }), "&code=c"),
        ("the past", &key, json!({ "exp": now().as_secs() - 600 }), "&code=c"),
        ("no user", &key, json!({ "sub": "" }), "&code=c"),
        ("another provider's answer", &key, json!({}), "&code=c&iss=http%3A%2F%2Fother.test"),
        ("no code", &key, json!({}), ""),
        ("an error", &key, json!({}), "&error=access_denied&code=c"),
    ] {
        let mut browser = new();
        let answer = login(&mut browser, signer, changes, answer);
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert!(!browser.set.iter().any(|cookie| cookie.starts_with("s=")), "{what}");
    }
    // A login that somebody else has begun (login CSRF), a made up one, and one that is over: no code is taken to the provider.
    let before = asked();
    let mut other = new();
    let theirs = other.get("http://app.test/").field("location").expect("a place").to_owned();
    for state in [argument(&theirs, "state"), "x".into(), String::new()] {
        let answer = new().get(&format!("http://app.test/callback?code=c&state={state}"));
        assert_eq!(answer.status, 400);
    }
    assert_eq!(new().get("http://app.test/callback?code=c").status, 400);
    let again = format!("http://app.test/callback?code=c&state={}", argument(&theirs, "state"));
    other.cookies.clear();
    assert_eq!(other.get(&again).status, 400);
    assert_eq!(asked(), before);
    // Tokens that are none.
    provider.say(|said| said.tokens = json!({ "error": "invalid_grant" }));
    let mut browser = new();
    let first = browser.get("http://app.test/").field("location").expect("a place").to_owned();
    let answer = browser.get(&format!("http://app.test/callback?code=c&state={}", argument(&first, "state")));
    assert_eq!(answer.status, 503);
}
