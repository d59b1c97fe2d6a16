//! Kong's own settings: `kong.conf` and the variables `KONG_…` of the environment, as settings of this gateway.
//!
//! [`KEYS`] has the effect of each key. A key without one is told of with the reason, when it says something else than what
//! holds anyway.

mod keys;
mod listen;

use std::collections::BTreeMap;

use weir_config::diagnostic::nearest;
use weir_config::{Code, Diagnostic, Hint, Mark};

pub use keys::KEYS;

/// Prefix of the variables.
const PREFIX: &str = "KONG_";

/// A key and its effect.
#[derive(Clone, Copy, Debug)]
pub struct ConfKey {
    /// Name, as in `kong.conf`; one that ends with `*` stands for all that begin so.
    pub name: &'static str,
    /// Effect.
    pub effect: Effect,
}

/// Effect of a key.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// The key sets settings.
    Sets(fn(&str, &mut Given)),
    /// These values say what holds anyway; others have no effect, for a reason.
    Fixed(&'static [&'static str], &'static str),
    /// The key has no effect, for a reason.
    Nothing(&'static str),
    /// The key is read elsewhere: it leads to the rules.
    Elsewhere,
}

/// Settings that a key gives, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Given {
    settings: Vec<(&'static str, String)>,
    doubts: Vec<String>,
    fault: Option<String>,
}

/// Settings of this gateway that Kong's stand for.
#[derive(Debug, Default)]
pub struct Conf {
    /// Path and value of each setting, and the key or the variable that it comes from.
    pub settings: Vec<(String, String, String)>,
    /// Keys without an effect, and errors.
    pub found: Vec<Diagnostic>,
}

/// A key as it was written.
struct Written {
    value: String,
    line: u32,
    /// Name of the file, or the variable.
    from: String,
}

impl Given {
    fn set(&mut self, path: &'static str, value: impl Into<String>) {
        self.settings.push((path, value.into()));
    }

    fn doubt(&mut self, why: impl Into<String>) {
        self.doubts.push(why.into());
    }

    fn fail(&mut self, expected: impl Into<String>) {
        self.fault = Some(expected.into());
    }
}

/// Reads the text of a `kong.conf`, by its name, and the environment, which takes precedence.
#[must_use]
pub fn read(file: Option<(&str, &str)>, variables: &[(String, String)]) -> Conf {
    let mut conf = Conf::default();
    let mut written = BTreeMap::new();
    if let Some((name, text)) = file {
        read_text(name, text, &mut written, &mut conf.found);
    }
    for (name, value) in variables {
        let Some(key) = name.strip_prefix(PREFIX).map(str::to_ascii_lowercase) else { continue };
        // A variable that nobody knows may be one that a kong.yml asks for.
        if known(&key).is_some() {
            written.insert(key, Written { value: value.trim().to_owned(), line: 0, from: name.clone() });
        }
    }
    for (key, written) in written {
        conf.key(&key, &written);
    }
    conf
}

/// Reads `key = value` lines. A `#` begins a comment, `\#` is the sign itself.
fn read_text(name: &str, text: &str, written: &mut BTreeMap<String, Written>, found: &mut Vec<Diagnostic>) {
    for (line, content) in (1..).zip(text.lines()) {
        let mark = Mark { line, column: 1 };
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let Some((key, value)) = content.split_once('=') else {
            let rule = Code::FamilyRule { text: "expected key = value".into() };
            found.push(Diagnostic::error(mark, "", rule).in_file(name));
            continue;
        };
        let key = key.trim().to_owned();
        let comment = value.match_indices('#').map(|(at, _)| at);
        let is_sign = |at: &usize| !value.get(..*at).is_some_and(|before| before.ends_with('\\'));
        let end = { comment }.find(is_sign).unwrap_or(value.len());
        let value = value.get(..end).unwrap_or_default().replace("\\#", "#").trim().to_owned();
        if known(&key).is_none() {
            let rule = Code::FamilyRule { text: "kong.conf has no such key: it is not read".into() };
            let hint = Hint::nearest(nearest(&key, KEYS.iter().map(|known| known.name)));
            found.push(Diagnostic { hint, ..Diagnostic::warning(mark, key, rule) }.in_file(name));
            continue;
        }
        written.insert(key, Written { value, line, from: name.to_owned() });
    }
}

fn known(key: &str) -> Option<&'static ConfKey> {
    let exact = KEYS.iter().find(|known| known.name == key);
    exact.or_else(|| KEYS.iter().find(|known| known.name.strip_suffix('*').is_some_and(|start| key.starts_with(start))))
}

impl Conf {
    fn key(&mut self, key: &str, written: &Written) {
        let Some(known) = known(key) else { return };
        let mark = Mark { line: written.line, column: u32::from(written.line > 0) };
        let mut doubt = |why: String| {
            let code = Code::NoEffect { why: format!("here: {why}").into() };
            self.found.push(Diagnostic::warning(mark, key, code).in_file(&written.from));
        };
        match known.effect {
            Effect::Elsewhere => {}
            Effect::Nothing(why) => doubt(why.to_owned()),
            Effect::Fixed(values, why) => {
                if !values.contains(&written.value.as_str()) {
                    doubt(why.to_owned());
                }
            }
            Effect::Sets(read) => {
                let mut given = Given::default();
                read(&written.value, &mut given);
                given.doubts.into_iter().for_each(&mut doubt);
                if let Some(expected) = given.fault {
                    let text = format!("expected {expected}, found \"{}\"", written.value);
                    let error = Diagnostic::error(mark, key, Code::FamilyRule { text: text.into() });
                    self.found.push(error.in_file(&written.from));
                    return;
                }
                let from = || format!("{key} of {}", written.from);
                self.settings.extend(given.settings.into_iter().map(|(path, value)| (path.to_owned(), value, from())));
            }
        }
    }
}

/// The file that `declarative_config` names, in the environment or in the text of a `kong.conf`, unless there is a database.
#[must_use]
pub fn declarative_config(text: Option<&str>, variables: &[(String, String)]) -> Option<String> {
    let mut written = BTreeMap::new();
    read_text("", text.unwrap_or_default(), &mut written, &mut Vec::new());
    let of_file = |key: &str| written.get(key).map(|written| written.value.clone());
    let value = |key: &str| {
        let name = format!("{PREFIX}{}", key.to_ascii_uppercase());
        let of_environment = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        of_environment.or_else(|| of_file(key)).filter(|value| !value.is_empty())
    };
    value("declarative_config").filter(|_| value("database").as_deref() == Some("off"))
}

/// Settings that differ for Kong's family where nothing is said: its ports.
#[must_use]
pub fn defaults() -> Vec<(String, String, String)> {
    let ports =
        [("listen.http", "0.0.0.0:8000"), ("listen.https", "0.0.0.0:8443"), ("listen.status", "127.0.0.1:8007")];
    ports.map(|(path, value)| (path.to_owned(), value.to_owned(), "defaults of Kong's family".to_owned())).into()
}

#[cfg(test)]
mod tests {
    use weir_config::Settings;
    use weir_config::settings::SettingsSource;

    use super::{KEYS, declarative_config, defaults, read};

    /// The settings of a text, and what is told of it.
    fn settings(text: &str, variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let conf = read(Some(("kong.conf", text)), &variables);
        let told = conf.found.iter().map(ToString::to_string).collect();
        let source = SettingsSource { below: &conf.settings, ..SettingsSource::default() };
        (Settings::load(source).expect("settings").0, told)
    }

    #[test]
    fn keys_become_settings() {
        let text = "
# a comment
proxy_listen = 127.0.0.1:1 reuseport backlog=16384, 127.0.0.1:2 http2 ssl, 127.0.0.1:3 http2 proxy_protocol # both
stream_listen = 127.0.0.1:4, 127.0.0.1:5 ssl, 127.0.0.1:6 udp
admin_listen = 127.0.0.1:7, 127.0.0.1:8 ssl
status_listen = off
nginx_worker_processes = 3
log_level = notice
proxy_access_log = /dev/stdout
proxy_error_log = /dev/stderr
trusted_ips = 10.0.0.0/8, 127.0.0.1
real_ip_header = X-Forwarded-For
real_ip_recursive = on
nginx_http_client_max_body_size = 8m
ssl_protocols = TLSv1.1 TLSv1.2 TLSv1.3
dns_resolver = 10.0.0.1, 10.0.0.2:5353
headers = off
";
        let (settings, told) = settings(text, &[("KONG_NGINX_WORKER_PROCESSES", "2"), ("KONG_MY_OWN", "x")]);
        let shown = |list: &[weir_config::settings::Listener]| {
            list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let listen = &settings.listen;
        assert_eq!(shown(&listen.http), "127.0.0.1:1 127.0.0.1:3");
        assert_eq!((shown(&listen.https).as_str(), listen.https[0].http2), ("127.0.0.1:2", Some(true)));
        assert_eq!((listen.http[1].http2, listen.http[1].proxy_protocol), (Some(true), true));
        assert_eq!((shown(&listen.tcp).as_str(), listen.tcp[1].tls), ("127.0.0.1:4 127.0.0.1:5", true));
        assert_eq!(shown(&listen.udp), "127.0.0.1:6");
        assert_eq!(settings.limits.body_size.bytes(), 8 << 20);
        assert!(settings.real_ip.recursive && settings.real_ip.trusted.len() == 2);
        assert!(settings.kong_answers.headers.is_empty());
        assert!(told.iter().any(|line| line.contains("admin_listen")), "{told:?}");
        assert!(told.iter().any(|line| line.contains("TLSv1.1")), "{told:?}");
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn the_ports_are_kongs() {
        let source = SettingsSource { below: &defaults(), ..SettingsSource::default() };
        let listen = Settings::load(source).expect("settings").0.listen;
        let shown = [listen.http[0].to_string(), listen.https[0].to_string(), listen.status.to_string()];
        assert_eq!(shown, ["0.0.0.0:8000", "0.0.0.0:8443", "127.0.0.1:8007"]);
        // The file of settings, and what comes above it, take precedence.
        let below = defaults();
        let flags = [("listen.https".to_owned(), "127.0.0.1:2".to_owned())];
        let source = SettingsSource {
            file: Some(("weir.yaml", "listen: {http: ['127.0.0.1:1']}")),
            flags: &flags,
            below: &below,
            ..SettingsSource::default()
        };
        let listen = Settings::load(source).expect("settings").0.listen;
        let shown = [listen.http[0].to_string(), listen.https[0].to_string(), listen.status.to_string()];
        assert_eq!(shown, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:8007"]);
    }

    #[test]
    fn keys_without_an_effect_say_why() {
        let text = "database = postgres\npg_host = db\nplugins = bundled\nrouter_flavor = traditional\n\
            mem_cache_size = 128m\nanonymous_reports = off\nproxy_listn = x\nlog_level = loud\n";
        let (_, told) = settings(text, &[]);
        for part in [
            "kong.conf:2:1: warning: pg_host",
            "kong.conf:4:1: warning: router_flavor",
            "kong.conf:5:1: warning: mem_cache_size",
            "did you mean proxy_listen?",
            "log_level: expected",
        ] {
            assert!(told.iter().any(|line| line.contains(part)), "no {part:?} in {told:#?}");
        }
        assert!(!told.iter().any(|line| line.contains("anonymous") || line.contains(" plugins:")), "{told:?}");
    }

    #[test]
    fn the_declarative_file_is_found() {
        let off = [("KONG_DATABASE".to_owned(), "off".to_owned())];
        assert_eq!(declarative_config(Some("declarative_config = /kong.yml"), &off), Some("/kong.yml".to_owned()));
        assert_eq!(declarative_config(Some("declarative_config = /kong.yml"), &[]), None);
    }

    #[test]
    fn keys_stand_once() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(!KEYS.iter().skip(at + 1).any(|other| other.name == key.name), "{}", key.name);
        }
    }
}
