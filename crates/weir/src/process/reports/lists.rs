//! Lists of Redis that reports are appended to: a connection for each batch, on a thread that may block.

use std::io::{self, BufReader, Write};
use std::sync::Arc;

use redis::{Cmd, Parser, Value, cmd};
use rustls::ClientConfig;
use weir_telemetry::reports::List;

use crate::exports::link::{self, Link};

/// Appends records to a list by one command, so that all of them are there or none.
///
/// # Errors
/// Reason why they were not appended, or no answer came.
pub(super) fn append(
    to: &List,
    tls: Option<&Arc<ClientConfig>>,
    records: &mut dyn Iterator<Item = &[u8]>,
) -> Result<(), String> {
    let mut push = cmd("RPUSH");
    push.arg(&to.key);
    let mut is_empty = true;
    for record in records {
        push.arg(record);
        is_empty = false;
    }
    if is_empty {
        return Ok(());
    }
    let mut connection = Connection::open(to, tls)?;
    connection.run(&push)?;
    if let Some(seconds) = to.expires {
        // The records are there. A list that lives too long is no reason to append them once more.
        if let Err(reason) = connection.expire(to, seconds) {
            tracing::warn!(reason, key = to.key, "a list of Redis has got no time to live");
        }
    }
    Ok(())
}

/// A connection that is logged in, and has selected its database.
struct Connection(BufReader<Link>);

impl Connection {
    fn open(to: &List, tls: Option<&Arc<ClientConfig>>) -> Result<Self, String> {
        let told = |error: io::Error| format!("Redis at {}:{}: {error}", to.host, to.port);
        let stream = link::connect_within(&to.host, to.port, to.timeout).map_err(told)?;
        let link = match tls {
            None => Link::Plain(stream),
            Some(config) => {
                let named = to.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
                Link::secure(stream, named.unwrap_or(&to.host), config).map_err(told)?
            }
        };
        let mut connection = Self(BufReader::new(link));
        match (to.username.as_str(), to.password.as_str()) {
            ("", "") => {}
            ("", password) => drop(connection.run(cmd("AUTH").arg(password))?),
            (user, password) => drop(connection.run(cmd("AUTH").arg(user).arg(password))?),
        }
        if to.database > 0 {
            connection.run(cmd("SELECT").arg(to.database))?;
        }
        Ok(connection)
    }

    /// Gives the list a time to live, unless it has one.
    fn expire(&mut self, to: &List, seconds: u64) -> Result<(), String> {
        if self.run(cmd("TTL").arg(&to.key))? == Value::Int(-1) {
            self.run(cmd("EXPIRE").arg(&to.key).arg(seconds))?;
        }
        Ok(())
    }

    fn run(&mut self, command: &Cmd) -> Result<Value, String> {
        let link = self.0.get_mut();
        let written = link.write_all(&command.get_packed_command()).and_then(|()| link.flush());
        written.map_err(|error| format!("Redis: {error}"))?;
        let answer = Parser::new().parse_value(&mut self.0).map_err(|error| format!("Redis: {error}"))?;
        match answer {
            Value::ServerError(error) => Err(format!("Redis: {error}")),
            answer => Ok(answer),
        }
    }
}
