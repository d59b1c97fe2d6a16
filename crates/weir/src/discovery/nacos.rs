//! Nacos: the services that upstreams name, asked for one by one now and then, and at once where there is a new one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use weir_config::settings::NacosDiscovery;
use weir_config::{DiscoveryType, NodeAddr};
use weir_proxy::{Service, Services};

use super::asker::{Asker, Failures};
use super::{node, spawn};

/// Starts asking. The task that is returned passes new services on.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    conf: &NacosDiscovery,
    services: &Arc<Services>,
    trusted: &str,
) -> std::io::Result<impl Future<Output = ()> + Send + use<>> {
    let servers = conf.host.iter().map(|host| Server::new(host.expose(), &conf.prefix)).collect();
    let asker = Asker::new(trusted, &conf.timeout);
    let nacos = Nacos { conf: conf.clone(), servers, asker, services: Arc::clone(services) };
    let (notify, notified) = sync_channel(1);
    spawn("weir-nacos", move || nacos.follow(&notified))?;
    let mut wanted = services.wanted();
    Ok(async move {
        while wanted.changed().await.is_ok() {
            // A full channel holds a notification already.
            let _ = notify.try_send(());
        }
    })
}

struct Nacos {
    conf: NacosDiscovery,
    servers: Vec<Server>,
    asker: Asker,
    services: Arc<Services>,
}

/// A server, and the login at it.
struct Server {
    uri: String,
    login: Option<(String, String)>,
    shown: String,
}

impl Server {
    fn new(host: &str, prefix: &str) -> Self {
        let (protocol, rest) = host.split_once("://").unwrap_or(("http", host));
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (login.split_once(':').map(|(user, word)| (user.to_owned(), word.to_owned())), rest),
            None => (None, rest),
        };
        let shown = format!("{protocol}://{rest}");
        let uri = format!("{}/", format!("{shown}{prefix}").trim_end_matches('/'));
        Self { uri, login, shown }
    }
}

impl Nacos {
    fn follow(&self, notified: &Receiver<()>) {
        let mut failures: Vec<Failures> =
            self.servers.iter().map(|server| Failures::of("nacos", &server.shown)).collect();
        let mut first = 0;
        loop {
            let wanted = Arc::clone(&self.services.wanted().borrow());
            let mine: BTreeSet<Service> =
                wanted.iter().filter(|service| service.registry == DiscoveryType::Nacos).cloned().collect();
            self.services.retain(DiscoveryType::Nacos, &mine);
            let mut answered = mine.is_empty();
            let begin = first;
            for at in (0..self.servers.len()).map(|step| (begin + step) % self.servers.len()) {
                let (Some(server), Some(failures)) = (self.servers.get(at), failures.get_mut(at)) else { continue };
                if answered {
                    break;
                }
                match self.ask(server, &mine) {
                    Ok(()) => {
                        failures.end();
                        (first, answered) = (at, true);
                    }
                    Err(error) => failures.note(&error),
                }
            }
            if !answered {
                mine.iter().for_each(|service| self.services.report_failure(DiscoveryType::Nacos, Some(service)));
            }
            // The sender lives as long as the control thread.
            let _ = notified.recv_timeout(Duration::from_secs(self.conf.fetch_interval.into()));
        }
    }

    /// Asks a server for all services. One that fails keeps its nodes, where others do not.
    ///
    /// # Errors
    /// That of the login, or of the last service where all failed.
    fn ask(&self, server: &Server, wanted: &BTreeSet<Service>) -> Result<(), String> {
        let token = match &server.login {
            Some((user, word)) => {
                let uri = format!("{}auth/login?username={}&password={}", server.uri, coded(user), coded(word));
                // The URI of the question holds the password, and so may the text of an error.
                let answer = self.asker.post(&uri).map_err(|error| error.replace(&uri, "auth/login"))?;
                let token = answer["accessToken"].as_str().filter(|token| !token.is_empty());
                format!("&accessToken={}", coded(token.ok_or("the answer to the login has no accessToken")?))
            }
            None => String::new(),
        };
        let (mut failed, mut answered) = (None, false);
        for service in wanted {
            let uri = format!("{}ns/instance/list?{}{token}", server.uri, self.query(service));
            match self.asker.get(&uri, &[], Duration::ZERO) {
                Ok(answer) => {
                    answered = true;
                    self.services.report_one("", service, nodes(&answer.body, service.is_grpc, self.conf.weight));
                }
                Err(error) => {
                    self.services.report_failure(DiscoveryType::Nacos, Some(service));
                    failed = Some(format!("service {}: {}", service.name, error.replace(&uri, "ns/instance/list")));
                }
            }
        }
        match failed {
            Some(error) if answered => {
                tracing::warn!(
                    server = server.shown,
                    error,
                    "Nacos does not answer for a service; its last nodes stay in use"
                );
                Ok(())
            }
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn query(&self, service: &Service) -> String {
        let (namespace, group) = service.place.clone().unwrap_or_default();
        let mut query = format!(
            "healthyOnly=true&serviceName={}&namespaceId={}&groupName={}",
            coded(&service.name),
            coded(&namespace),
            coded(&group)
        );
        let (key, secret) = (self.conf.access_key.expose(), self.conf.secret_key.expose());
        if !key.is_empty() && !secret.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let data = format!("{now}@@{group}@@{}", service.name);
            let signature = signature(secret, &data);
            query.push_str(&format!("&ak={}&data={}&signature={}", coded(key), coded(&data), coded(&signature)));
        }
        query
    }
}

/// The signature that Nacos wants: HMAC with SHA-1, in Base64.
fn signature(secret: &str, data: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
    STANDARD.encode(hmac::sign(&key, data.as_bytes()))
}

fn coded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The nodes of an answer.
fn nodes(answer: &Value, is_grpc: bool, weight: u32) -> Vec<NodeAddr> {
    let instance = |host: &Value| {
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let own = is_grpc.then(|| number(&host["metadata"]["gRPC_port"])).flatten();
        let port = u16::try_from(own.or_else(|| number(&host["port"]))?).ok()?;
        // Weights of Nacos may be fractions: none but 0 is rounded to 0.
        let weight = match host["weight"].as_f64() {
            Some(own) if own > 0.0 => (own.round() as u32).max(1),
            Some(_) => 0,
            None => weight,
        };
        node(host["ip"].as_str()?, port, weight)
    };
    answer["hosts"].as_array().into_iter().flatten().filter_map(instance).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_become_nodes() {
        let answer = json!({ "hosts": [
            { "ip": "10.0.0.1", "port": 80, "weight": 1.0, "metadata": { "gRPC_port": "9000" } },
            { "ip": "10.0.0.2", "port": 80, "weight": 0.2 },
            { "ip": "10.0.0.3", "port": 80 },
            { "ip": "10.0.0.4" },
            { "port": 80 },
        ] });
        let shown = |is_grpc| {
            let nodes = nodes(&answer, is_grpc, 100);
            nodes.iter().map(|node| format!("{node} {}", node.weight)).collect::<Vec<_>>()
        };
        assert_eq!(shown(false), ["10.0.0.1:80 1", "10.0.0.2:80 1", "10.0.0.3:80 100"]);
        assert_eq!(shown(true)[0], "10.0.0.1:9000 1");
        assert!(nodes(&json!({ "hosts": null }), false, 1).is_empty());
    }

    #[test]
    fn a_server_may_have_a_login() {
        let server = Server::new("http://nacos:na:cos@127.0.0.1:8848", "/nacos/v1/");
        assert_eq!(server.uri, "http://127.0.0.1:8848/nacos/v1/");
        assert_eq!(server.login, Some(("nacos".to_owned(), "na:cos".to_owned())));
        assert!(!server.shown.contains("cos@"));
    }

    /// The signature of RFC 2202, test case 2.
    #[test]
    fn signatures_are_hmac_with_sha1() {
        let expected = STANDARD.encode([
            0xef, 0xfc, 0xdf, 0x6a, 0xe5, 0xeb, 0x2f, 0xa2, 0xd2, 0x74, 0x16, 0xd5, 0xf1, 0x84, 0xdf, 0x9c, 0x25, 0x9a,
            0x7c, 0x79,
        ]);
        assert_eq!(signature("Jefe", "what do ya want for nothing?"), expected);
    }
}
