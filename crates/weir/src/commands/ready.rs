//! `weir ready`: the question of a health check, for containers that hold no other program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, anyhow};

use crate::failure::{self, Failure};

/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read.
const MOST: u64 = 4096;

/// Asks the status server at this address.
///
/// # Errors
/// The gateway does not answer, or is not ready.
pub(crate) fn ready(address: SocketAddr) -> Result<(), Failure> {
    let answer = ask(address).with_context(|| format!("no answer from {address} (listen.status)"))?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return failure::print("ready\n");
    }
    let reason = answer.split("\r\n\r\n").nth(1).unwrap_or_default().trim();
    Err(Failure::Other(anyhow!("not ready: {reason}")))
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream
        .write_all(format!("GET /status/ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
