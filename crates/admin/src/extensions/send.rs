//! `POST /weir/v1/explain`: a request that is sent for real, with the time of each of its phases.
//!
//! The request goes to this gateway's own listener, over a connection of its own. Its source is a loopback address by chance,
//! by which the sample of the exchange is found among those of all others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use weir_telemetry::metrics::{Seen, Tried};

use super::object;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::keys::Role;
use crate::request::Request;

/// Limit for the whole exchange.
const LIMIT: Duration = Duration::from_secs(30);
/// Time that the sample of an exchange may take to come. Samples are taken every 250 ms.
const SAMPLED: Duration = Duration::from_secs(2);
/// Bytes of a body that are read.
const MOST: usize = 1 << 20;
/// Bytes of a body that are shown.
const SHOWN: usize = 16 << 10;

/// A request to this gateway itself.
#[derive(Clone, Debug)]
pub struct OwnRequest {
    /// Address of a listener without TLS.
    pub to: SocketAddr,
    /// Method.
    pub method: String,
    /// Host, with its port where it has one.
    pub host: String,
    /// Path and query.
    pub target: String,
    /// Fields.
    pub fields: Vec<(String, String)>,
}

impl Api {
    /// Sends a request for real.
    pub(crate) async fn send_for_real(&self, request: &Request) -> Outcome {
        if request.by.role != Role::Admin {
            let message = format!("the role {} may not send requests", request.by.role.name());
            return Err(Answer::error(StatusCode::FORBIDDEN, message));
        }
        let body = object(request, &["request", "headers", "body"])?;
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        let asked = text("request");
        let asked =
            asked.ok_or_else(|| Answer::bad("request: expected a method and a URL: GET http://example.com/a"))?;
        let field = |text: &Value| {
            let (name, value) = text.as_str()?.split_once(':')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let fields = body.get("headers").and_then(Value::as_array).into_iter().flatten().map(field);
        let fields: Option<Vec<_>> = fields.collect();
        let fields =
            fields.ok_or_else(|| Answer::bad("headers: expected a list of NAME: VALUE, such as apikey: k1"))?;
        let own = self.gateway.own_request(asked, fields).map_err(Answer::bad)?;
        let content = Bytes::from(text("body").unwrap_or_default().to_owned());
        let prepared = prepare(&own, content).map_err(Answer::bad)?;
        let watch = self.gateway.pulse().map(|pulse| (pulse.watch_requests(), Arc::clone(pulse.metrics())));
        let sent = timeout(LIMIT, send(own.to, prepared)).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {} seconds", LIMIT.as_secs())));
        let (mut told, source) = match sent {
            Ok(sent) => sent,
            Err(reason) => return Ok(Answer::json(StatusCode::OK, &json!({ "failed": reason }))),
        };
        if let (Some(((_watching, mut samples), metrics)), Some(source)) = (watch, source) {
            let source = source.to_string();
            let find = async {
                while let Ok(batch) = samples.recv().await {
                    if let Some(seen) = batch.iter().find(|seen| seen.client.bytes() == source.as_bytes()) {
                        return Some(*seen);
                    }
                }
                None
            };
            if let Some(seen) = timeout(SAMPLED, find).await.ok().flatten() {
                let mut sample = super::live::told(&seen, metrics.labels());
                sample["phases"] = phases(&seen);
                told["gateway"] = sample;
            }
        }
        Ok(Answer::json(StatusCode::OK, &told))
    }
}

/// The phases of an exchange in the gateway, in their order, with their milliseconds.
fn phases(seen: &Seen) -> Value {
    let phase = |name: &str, us: u32| json!({ "name": name, "ms": f64::from(us) / 1000.0 });
    let Some(Tried { ahead_us, connect_us, wait_us, read_us }) = seen.tried else {
        return json!([phase("gateway", seen.latency_us)]);
    };
    let rest = seen.latency_us.saturating_sub(ahead_us + connect_us + wait_us + read_us);
    json!([
        phase("request, route and plugins", ahead_us),
        phase("connection to the node", connect_us),
        phase("wait for the node", wait_us),
        phase("answer of the node", read_us),
        phase("plugins of the answer, and the rest", rest),
    ])
}

/// A request for hyper.
fn prepare(own: &OwnRequest, content: Bytes) -> Result<hyper::Request<Full<Bytes>>, String> {
    let method = Method::from_bytes(own.method.as_bytes()).map_err(|_| "request: expected a method".to_owned())?;
    let mut fields = HeaderMap::new();
    fields.insert(HOST, HeaderValue::try_from(&own.host).map_err(|_| "request: expected a host".to_owned())?);
    for (name, value) in &own.fields {
        let place = || format!("headers: {name}: expected the name of a field, and a value without line ends");
        let name = HeaderName::try_from(name).map_err(|_| place())?;
        if name == CONTENT_LENGTH || name == "transfer-encoding" || name == "connection" {
            return Err(format!("headers: {name}: it is made of the body"));
        }
        fields.append(name, HeaderValue::try_from(value).map_err(|_| place())?);
    }
    let mut request = hyper::Request::builder().method(method).uri(own.target.as_str()).body(Full::new(content));
    if let Ok(request) = &mut request {
        *request.headers_mut() = fields;
    }
    request.map_err(|_| "request: expected a path without blanks".to_owned())
}

/// Sends a request over a connection of its own. Gives what came back, and the source of the connection where it is one of
/// a kind.
async fn send(to: SocketAddr, request: hyper::Request<Full<Bytes>>) -> Result<(Value, Option<IpAddr>), String> {
    let told = |error: &dyn std::fmt::Display| format!("{to}: {error}");
    let began = Instant::now();
    let millis = |to: Instant| to.duration_since(began).as_micros() as f64 / 1000.0;
    let (stream, source) = connect(to).await.map_err(|error| told(&error))?;
    let connected = Instant::now();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| told(&error))?;
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| told(&error))?;
    let head = Instant::now();
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MOST).collect().await;
    let (body, whole) = match body {
        Ok(body) => (body.to_bytes(), true),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => (Bytes::new(), false),
        Err(error) => return Err(told(&error)),
    };
    let end = Instant::now();
    driver.abort();
    let fields = parts.headers.iter();
    let fields: Vec<Value> =
        fields.map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())])).collect();
    let shown = String::from_utf8_lossy(body.get(..SHOWN).unwrap_or(&body)).into_owned();
    let answer = json!({
        "status": parts.status.as_u16(),
        "fields": fields,
        "body": shown,
        "body_bytes": if whole { json!(body.len()) } else { Value::Null },
        "times": { "connect_ms": millis(connected), "head_ms": millis(head), "total_ms": millis(end) },
        "gateway": Value::Null,
    });
    Ok((answer, source))
}

/// Connects from a loopback address by chance; where that is not possible, from any.
async fn connect(to: SocketAddr) -> std::io::Result<(TcpStream, Option<IpAddr>)> {
    let mut bytes = [0; 3];
    if to.is_ipv4() && aws_lc_rs::rand::fill(&mut bytes).is_ok() {
        let [a, b, c] = bytes;
        // Neither the addresses of the network nor those that people use.
        let source = IpAddr::V4(Ipv4Addr::new(127, a | 1, b, c.clamp(1, 254)));
        let socket = TcpSocket::new_v4()?;
        if socket.bind(SocketAddr::new(source, 0)).is_ok()
            && let Ok(stream) = socket.connect(to).await
        {
            return Ok((stream, Some(source)));
        }
    }
    Ok((TcpStream::connect(to).await?, None))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use weir_telemetry::metrics::{Seen, Tried};

    use super::{OwnRequest, phases, prepare};

    #[test]
    fn phases_add_up_to_the_whole() {
        let tried = Tried { ahead_us: 100, connect_us: 200, wait_us: 3000, read_us: 400 };
        let told = phases(&Seen { latency_us: 4000, tried: Some(tried), ..Seen::default() });
        let sum: f64 = told.as_array().expect("a list").iter().filter_map(|one| one["ms"].as_f64()).sum();
        assert!((sum - 4.0).abs() < 1e-9 && told[4]["ms"] == 0.3, "{told}");
        assert_eq!(phases(&Seen { latency_us: 4000, ..Seen::default() })[0]["ms"], 4.0);
    }

    #[test]
    fn a_request_that_is_none_is_told() {
        let own = |method: &str, field: (&str, &str)| OwnRequest {
            to: ([127, 0, 0, 1], 1).into(),
            method: method.to_owned(),
            host: "a.test:80".to_owned(),
            target: "/a?b".to_owned(),
            fields: vec![(field.0.to_owned(), field.1.to_owned())],
        };
        let made = prepare(&own("PURGE", ("apikey", "k")), Bytes::new()).expect("a request");
        assert_eq!((made.method().as_str(), made.uri().to_string().as_str()), ("PURGE", "/a?b"));
        assert_eq!(
            (made.headers()["host"].as_bytes(), made.headers()["apikey"].as_bytes()),
            (&b"a.test:80"[..], &b"k"[..])
        );
        for (method, field, reason) in [
            ("G T", ("a", "b"), "expected a method"),
            ("GET", ("a b", "c"), "headers: a b"),
            ("GET", ("a", "b\nc"), "headers: a"),
            ("GET", ("Content-Length", "7"), "it is made of the body"),
        ] {
            let error = prepare(&own(method, field), Bytes::new()).expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
    }
}
