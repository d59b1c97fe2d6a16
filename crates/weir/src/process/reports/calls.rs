//! Calls of gRPC that take batches: one request and one answer each, over a connection of HTTP/2 that the thread keeps.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;
use ureq::http::{HeaderMap, Request, Uri};
use weir_telemetry::reports::Post;

/// Most connections that a thread keeps.
const KEPT: usize = 16;
/// Most bytes of an answer's message that are read.
const MOST: usize = 1 << 20;
/// The field with the result of a call, and that with its text.
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// Connections of a thread that sends. They live while a call of the thread is under way, and are tried at the next one.
struct Calls {
    runtime: Runtime,
    /// By scheme, host and port, and by whether the server's certificate is verified.
    connections: HashMap<(String, bool), SendRequest<Bytes>>,
}

thread_local! {
    static CALLS: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Makes a call. `tls` is the setup of TLS for a URI of `https`.
///
/// # Errors
/// Reason why the message was not taken.
pub(super) fn call(post: &Post, tls: Option<Arc<ClientConfig>>, message: &[u8]) -> Result<(), String> {
    CALLS.with_borrow_mut(|calls| {
        let calls = match calls {
            Some(calls) => calls,
            None => {
                let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
                calls.insert(Calls { runtime, connections: HashMap::new() })
            }
        };
        let Calls { runtime, connections } = calls;
        let made = runtime.block_on(async {
            let within = tokio::time::timeout(post.timeout, make(connections, post, tls, message));
            within.await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
        });
        if made.is_err() {
            connections.clear();
        }
        made
    })
}

async fn make(
    connections: &mut HashMap<(String, bool), SendRequest<Bytes>>,
    post: &Post,
    tls: Option<Arc<ClientConfig>>,
    message: &[u8],
) -> Result<(), String> {
    let uri: Uri = post.uri.parse().map_err(|_| "its URI cannot be read")?;
    let place = format!("{}://{}", uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |a| a.as_str()));
    let known = connections.remove(&(place.clone(), post.verify));
    // The server may have ended one meanwhile; then another one is opened.
    let asked = match known {
        Some(sender) => {
            Some(ask(sender, &uri, post, message).await).filter(|asked| !matches!(asked, Err(Failure::Broken(_))))
        }
        None => None,
    };
    let asked = match asked {
        Some(asked) => asked,
        None => ask(connect(&uri, tls).await?, &uri, post, message).await,
    };
    let sender = asked.map_err(|(Failure::Broken(reason) | Failure::Refused(reason))| reason)?;
    if connections.len() < KEPT {
        connections.insert((place, post.verify), sender);
    }
    Ok(())
}

/// Reasons why a call did not succeed.
enum Failure {
    /// There is no answer.
    Broken(String),
    /// The answer is no good one.
    Refused(String),
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

async fn connect(uri: &Uri, tls: Option<Arc<ClientConfig>>) -> Result<SendRequest<Bytes>, String> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    match tls {
        None => shake_hands(socket).await,
        Some(tls) => {
            let mut config = ClientConfig::clone(&tls);
            config.alpn_protocols = vec![b"h2".to_vec()];
            let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
            shake_hands(stream.map_err(|error| error.to_string())?).await
        }
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Bytes>, String> {
    let (sender, connection) = h2::client::handshake(stream).await.map_err(|error| error.to_string())?;
    // Its errors are those of the calls on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// Sends the message, and reads the answer to its end. Gives the connection back.
async fn ask(
    sender: SendRequest<Bytes>,
    uri: &Uri,
    post: &Post,
    message: &[u8],
) -> Result<SendRequest<Bytes>, Failure> {
    let refused = |reason: &str| Failure::Refused(reason.to_owned());
    let mut sender = sender.ready().await?;
    let mut request = Request::post(uri).header("te", "trailers").header("content-type", "application/grpc");
    for (name, value) in &post.fields {
        request = request.header(name, value);
    }
    let request = request.body(()).map_err(|error| Failure::Refused(error.to_string()))?;
    let (answer, mut sending) = sender.send_request(request, false)?;
    let length = u32::try_from(message.len()).map_err(|_| refused("a batch of more than 4 GiB"))?;
    let mut framed = Vec::with_capacity(5 + message.len());
    // Not compressed, and the length.
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    sending.send_data(framed.into(), true)?;
    let (head, mut body) = answer.await?.into_parts();
    if head.status.as_u16() != 200 {
        return Err(Failure::Refused(format!("status {}", head.status.as_u16())));
    }
    let mut bytes = 0;
    while let Some(piece) = body.data().await {
        let piece = piece?;
        bytes += piece.len();
        if bytes > MOST {
            return Err(refused("an answer of more than 1 MiB"));
        }
        body.flow_control().release_capacity(piece.len())?;
    }
    let trailers = body.trailers().await?;
    // An answer without a message has its result in the head.
    let fields = trailers.as_ref().filter(|trailers| trailers.contains_key(STATUS)).unwrap_or(&head.headers);
    result(fields).map_err(Failure::Refused)?;
    Ok(sender)
}

/// The result of a call (gRPC over HTTP/2, "Responses").
fn result(fields: &HeaderMap) -> Result<(), String> {
    let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
    match text(STATUS) {
        Some("0") => Ok(()),
        Some(status) => {
            let message = percent_decode_str(text(MESSAGE).unwrap_or_default()).decode_utf8_lossy().into_owned();
            let shown: String = message.chars().take(super::SHOWN).collect();
            Err(format!("status {status} of gRPC: {shown}"))
        }
        None => Err("the answer has no grpc-status".to_owned()),
    }
}
