//! Reports of plugins on their way to their destinations, on threads that may block.

mod calls;
mod documents;
mod kafka;
mod lists;
mod rocketmq;
mod streams;
mod tokens;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use weir_config::Settings;
use weir_telemetry::reports::{
    self, Bounds, Carrier, Check, Documents, Grant, List, MessageTopic, Post, Tcp, Topic, Udp,
};

use crate::agents::Agents;
use documents::Collections;
use kafka::Producers;
use rocketmq::Senders;
use streams::Streams;
use tokens::Tokens;

/// Most bytes of a collector's answer that are read: to keep its connection, and to find what it has refused.
const MOST: u64 = 1 << 20;
/// Most bytes of a collector's answer that are shown in the log.
const SHOWN: usize = 200;
/// Time for one datagram to the syslog daemon.
const SYSLOG: Duration = Duration::from_secs(2);

/// Starts what sends reports.
///
/// # Errors
/// The folder for spilled reports cannot be made, or a thread not be started.
pub(crate) fn start(settings: &Settings) -> io::Result<()> {
    let options = &settings.reports;
    let spill = match options.spill.as_str() {
        "" => None,
        folder => {
            std::fs::create_dir_all(folder)?;
            Some((folder.into(), options.spill_size.bytes()))
        }
    };
    let bounds = Bounds { ring: options.buffer.as_usize(), memory: options.memory.as_usize(), spill };
    let trusted = &settings.tls.trusted_certificate;
    let carriers = Carriers {
        agents: Agents::new(trusted, None),
        streams: Streams::new(trusted),
        collections: Collections::new(trusted),
        producers: Producers::default(),
        senders: Senders::default(),
        tokens: Tokens::default(),
        syslog: options.syslog.clone(),
    };
    reports::start(bounds, Arc::new(carriers))
}

/// HTTP clients, byte streams, databases, and producers of Kafka and RocketMQ on byte streams.
struct Carriers {
    agents: Agents,
    streams: Streams,
    collections: Collections,
    producers: Producers,
    senders: Senders,
    tokens: Tokens,
    /// The setting `reports.syslog`.
    syslog: String,
}

impl Carrier for Carriers {
    fn post(&self, post: &Post, check: Check, batch: &[u8]) -> Result<u64, String> {
        let (status, answer) = self.ask(post, None, batch)?;
        let is_taken = match check {
            Check::NoError => status < 400,
            Check::Success => (200..300).contains(&status),
            Check::Bulk => status == 200,
        };
        if !is_taken {
            return Err(refusal(status, &answer));
        }
        Ok(if check == Check::Bulk { refused(&answer) } else { 0 })
    }

    fn post_granted(&self, post: &Post, grant: &Grant, batch: &[u8]) -> Result<(), String> {
        let token = self.tokens.of(grant, |form| {
            let fields = vec![("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned())];
            let service = Post { uri: grant.token_uri.clone(), fields, ..*post };
            match self.ask(&service, None, form.as_bytes())? {
                (200, answer) => Ok(answer),
                (status, answer) => Err(refusal(status, &answer)),
            }
        })?;
        let (status, answer) = self.ask(post, Some(&token), batch)?;
        if status == 401 {
            self.tokens.forget(grant);
        }
        if (200..300).contains(&status) { Ok(()) } else { Err(refusal(status, &answer)) }
    }

    fn call(&self, post: &Post, batch: &[u8]) -> Result<(), String> {
        let tls = post.uri.starts_with("https:").then(|| self.streams.config(post.verify)).transpose()?;
        calls::call(post, tls, batch)
    }

    fn stream(&self, to: &Tcp, batch: &[u8]) -> Result<(), String> {
        self.streams.write(to, batch).map_err(|error| format!("{}:{}: {error}", to.host, to.port))
    }

    fn produce(&self, to: &Topic, batch: &[u8]) -> Result<(), String> {
        self.producers.produce(&self.streams, to, batch)
    }

    fn send_message(&self, to: &MessageTopic, batch: &[u8]) -> Result<(), String> {
        self.senders.send(&self.streams, to, batch)
    }

    fn datagrams(&self, to: &Udp, payloads: &mut dyn Iterator<Item = &[u8]>) -> Result<u64, String> {
        let failed = |error: io::Error| format!("{}:{}: {error}", to.host, to.port);
        let socket = connect(to).map_err(failed)?;
        // An error that is pending from the datagram before is reported once, and nothing is sent then.
        let send = |payload: &[u8]| {
            socket.send(payload).or_else(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => socket.send(payload),
                _ => Err(error),
            })
        };
        each(payloads, send).map_err(failed)
    }

    fn syslog(&self, payloads: &mut dyn Iterator<Item = &[u8]>) -> Result<u64, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.syslog);
        let socket = UnixDatagram::unbound().map_err(failed)?;
        // A daemon that does not read holds a thread no longer than this.
        socket.set_write_timeout(Some(SYSLOG)).map_err(failed)?;
        each(payloads, |payload| socket.send_to(payload, &self.syslog)).map_err(failed)
    }

    fn append(&self, to: &List, records: &mut dyn Iterator<Item = &[u8]>) -> Result<(), String> {
        let tls = to.tls.as_ref().map(|tls| self.streams.config(tls.verify)).transpose()?;
        lists::append(to, tls.as_ref(), records)
    }

    fn insert(&self, to: &Documents, records: &mut dyn Iterator<Item = &[u8]>) -> Result<(), String> {
        self.collections.insert(to, records)
    }
}

impl Carriers {
    /// The status of the answer to a request, and its body.
    fn ask(&self, post: &Post, authorization: Option<&str>, body: &[u8]) -> Result<(u16, Vec<u8>), String> {
        let agent = self.agents.of(&post.uri, post.verify)?;
        let request = agent.post(&post.uri).config().timeout_global(Some(post.timeout)).build();
        let request = post.fields.iter().fold(request, |request, (name, value)| request.header(name, value));
        let request = authorization.into_iter().fold(request, |request, value| request.header("Authorization", value));
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        // Read to its end, a connection can be used again; an answer that breaks off says what its beginning says.
        let answer = response.body_mut().with_config().limit(MOST).read_to_vec().unwrap_or_default();
        Ok((status, answer))
    }
}

/// The reason of a collector that did not take a batch.
fn refusal(status: u16, answer: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(answer).chars().take(SHOWN).collect();
    format!("status {status}: {shown}")
}

/// Sends each payload. Returns how many could not be sent, or the last error if none could.
fn each(
    payloads: &mut dyn Iterator<Item = &[u8]>,
    mut send: impl FnMut(&[u8]) -> io::Result<usize>,
) -> io::Result<u64> {
    let (mut sent, mut lost, mut last) = (0u64, 0, None);
    for payload in payloads {
        match send(payload) {
            Ok(_) => sent += 1,
            Err(error) => {
                lost += 1;
                last = Some(error);
            }
        }
    }
    match last {
        Some(error) if sent == 0 => Err(error),
        _ => Ok(lost),
    }
}

/// A socket for datagrams to this receiver.
fn connect(to: &Udp) -> io::Result<UdpSocket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (to.host.as_str(), to.port).to_socket_addrs()? {
        let own: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        match UdpSocket::bind(own).and_then(|socket| socket.connect(address).map(|()| socket)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Number of records that an answer of Elasticsearch's bulk API names as failed, of which the first is logged.
fn refused(answer: &[u8]) -> u64 {
    // An answer that is cut off or broken says nothing of single records.
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(answer) else { return 0 };
    if answer.get("errors").and_then(serde_json::Value::as_bool) != Some(true) {
        return 0;
    }
    let items = answer.get("items").and_then(serde_json::Value::as_array).into_iter().flatten();
    let failed = items.filter_map(|item| item.as_object()?.values().next()?.get("error")).collect::<Vec<_>>();
    if let Some(first) = failed.first() {
        let first: String = first.to_string().chars().take(SHOWN).collect();
        tracing::warn!(records = failed.len(), first, "the collector has refused some records of a batch");
    }
    failed.len() as u64
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn an_answer_of_the_bulk_api_names_what_it_refused() {
        for (answer, count) in [
            ("{\"errors\":false,\"items\":[{\"index\":{\"status\":201}}]}", 0),
            (
                "{\"errors\":true,\"items\":[{\"index\":{\"status\":201}},{\"index\":{\"error\":{\"type\":\"x\"},\"status\":400}}]}",
                1,
            ),
            ("{\"errors\":true,\"items\":[{\"create\":{\"error\":\"a\"}},{\"index\":{\"error\":\"b\"}}, 7, []]}", 2),
            ("{\"errors\":true}", 0),
            ("[]", 0),
            ("no JSON", 0),
        ] {
            assert_eq!(refused(answer.as_bytes()), count, "{answer}");
        }
    }
}
