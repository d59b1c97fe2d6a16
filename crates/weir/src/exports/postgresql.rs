//! Usage in a table of PostgreSQL.
//!
//! A client of a few messages of the protocol, version 3: login, statements, and COPY. The crates that speak all of it
//! bring second versions of crates that are here, and a runtime.

use std::fmt;
use std::io::{self, Read, Write};

use jiff::Timestamp;
use weir_usage::{Minute, Row, Sink};

use super::Server;
use super::link::{self, Link};
use super::scram::Scram;

/// Codes at the beginning of a connection.
const VERSION_3: u32 = 196_608;
const SSL_REQUEST: u32 = 80_877_103;
/// Number of the lock under which the table is made.
const LOCK: u32 = 0x5765_5573;
/// Most bytes of a message of the server's.
const MOST: usize = 1 << 20;
/// Bytes of rows that are sent in one message.
const PIECE: usize = 256 << 10;

/// A table.
pub(super) struct Table {
    server: Server,
    connection: Option<Connection>,
    is_made: bool,
}

impl Table {
    pub(super) fn new(server: Server) -> Self {
        Self { server, connection: None, is_made: false }
    }

    /// The statement that makes the table.
    fn definition(&self) -> String {
        let table = &self.server.table;
        let texts: Vec<String> = Row::DIMENSIONS.iter().map(|name| format!("{name} text NOT NULL")).collect();
        let numbers: Vec<String> =
            Row::SUMS.iter().chain(&Row::PERCENTILES).map(|name| format!("{name} bigint NOT NULL")).collect();
        // Two that make it at the same time would fail.
        format!(
            "SELECT pg_advisory_xact_lock({LOCK}); CREATE TABLE IF NOT EXISTS {table} (time timestamptz NOT NULL, gateway text NOT NULL, {}, \
             status smallint NOT NULL, {}, PRIMARY KEY (time, gateway, {}, status))",
            texts.join(", "),
            numbers.join(", "),
            Row::DIMENSIONS.join(", "),
        )
    }

    fn replace(&self, connection: &mut Connection, minutes: &[Minute]) -> Result<(), Error> {
        let table = &self.server.table;
        let times: Vec<String> = minutes.iter().map(|minute| format!("'{}'", time(minute.start))).collect();
        let gateway = self.server.gateway.replace(['\0', '\\'], "?").replace('\'', "''");
        connection.run(&format!(
            "BEGIN; SET LOCAL standard_conforming_strings = on; \
             DELETE FROM {table} WHERE gateway = '{gateway}' AND time IN ({})",
            times.join(", ")
        ))?;
        let mut rows = String::new();
        for minute in minutes {
            let time = time(minute.start);
            for row in &minute.rows {
                rows.push_str(&time);
                for text in [self.server.gateway.as_str()].into_iter().chain(row.dimensions.iter().map(AsRef::as_ref)) {
                    rows.push('\t');
                    push_copied(&mut rows, text);
                }
                rows.push_str(&format!("\t{}", row.class));
                for number in row.sums.iter().chain(&row.percentiles) {
                    rows.push_str(&format!("\t{}", i64::try_from(*number).unwrap_or(i64::MAX)));
                }
                rows.push('\n');
            }
        }
        let columns = ["time", "gateway"].into_iter().chain(Row::DIMENSIONS).chain(["status"]);
        let columns: Vec<&str> = columns.chain(Row::SUMS).chain(Row::PERCENTILES).collect();
        connection.copy(&format!("COPY {table} ({}) FROM STDIN", columns.join(", ")), rows.as_bytes())?;
        connection.run("COMMIT")
    }
}

impl Sink for Table {
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String> {
        // A connection with a failure is closed, which takes back what was not committed.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.server).map_err(|error| error.to_string())?,
        };
        if !self.is_made {
            connection.run(&self.definition()).map_err(|error| error.to_string())?;
            self.is_made = true;
        }
        self.replace(&mut connection, minutes).map_err(|error| error.to_string())?;
        self.connection = Some(connection);
        Ok(())
    }
}

fn time(start: u64) -> String {
    Timestamp::from_second(start.cast_signed()).unwrap_or_default().to_string()
}

/// Appends a text in the text format of COPY. A text of PostgreSQL has no NUL.
fn push_copied(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\0' => out.push('?'),
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            other => out.push(other),
        }
    }
}

/// Reasons for a failed step.
#[derive(Debug)]
enum Error {
    Io(io::Error),
    Refused(String),
    Unexpected,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Refused(reason) => write!(f, "PostgreSQL: {reason}"),
            Self::Unexpected => f.write_str("PostgreSQL sends an unexpected message"),
        }
    }
}

/// A connection that is logged in.
struct Connection {
    link: Link,
}

/// A message of the server's: its type and content.
struct Message {
    kind: u8,
    content: Vec<u8>,
}

impl Connection {
    fn open(server: &Server) -> Result<Self, Error> {
        let mut stream = link::connect(&server.host, server.port)?;
        let link = match &server.tls {
            None => Link::Plain(stream),
            Some(config) => {
                stream.write_all(&[8u32.to_be_bytes(), SSL_REQUEST.to_be_bytes()].concat())?;
                let mut answer = [0];
                stream.read_exact(&mut answer)?;
                if answer != *b"S" {
                    return Err(Error::Refused("the server has no TLS: ?sslmode=disable goes without".to_owned()));
                }
                Link::secure(stream, &server.host, config)?
            }
        };
        let mut connection = Self { link };
        connection.log_in(server)?;
        Ok(connection)
    }

    fn log_in(&mut self, server: &Server) -> Result<(), Error> {
        let mut content = VERSION_3.to_be_bytes().to_vec();
        let database = if server.database.is_empty() { server.user.as_str() } else { server.database.as_str() };
        for (name, value) in [
            ("user", server.user.as_str()),
            ("database", database),
            ("application_name", "weir"),
            ("client_encoding", "UTF8"),
        ] {
            push_text(&mut content, name);
            push_text(&mut content, value);
        }
        content.push(0);
        self.link.write_all(&(content.len() as u32 + 4).to_be_bytes())?;
        self.link.write_all(&content)?;
        self.link.flush()?;
        let mut scram = Scram::new("", &server.password).map_err(Error::Refused)?;
        loop {
            let Message { kind, content } = self.receive()?;
            if kind != b'R' {
                return self.finish(Message { kind, content });
            }
            let (code, rest) = content.split_first_chunk::<4>().ok_or(Error::Unexpected)?;
            let text = || String::from_utf8_lossy(rest).into_owned();
            match u32::from_be_bytes(*code) {
                0 => {}
                3 => {
                    let mut password = Vec::new();
                    push_text(&mut password, &server.password);
                    self.send(b'p', &password)?;
                }
                10 if text().split('\0').any(|mechanism| mechanism == "SCRAM-SHA-256") => {
                    let (mut answer, first) = (Vec::new(), scram.first());
                    push_text(&mut answer, "SCRAM-SHA-256");
                    answer.extend_from_slice(&(first.len() as u32).to_be_bytes());
                    answer.extend_from_slice(first.as_bytes());
                    self.send(b'p', &answer)?;
                }
                11 => {
                    let answer = scram.answer(&text()).map_err(Error::Refused)?;
                    self.send(b'p', answer.as_bytes())?;
                }
                12 => scram.finish(&text()).map_err(Error::Refused)?,
                5 => {
                    return Err(Error::Refused(
                        "the user's password is kept as MD5: set it anew, as scram-sha-256".into(),
                    ));
                }
                _ => return Err(Error::Refused("the server asks for another login than by password".to_owned())),
            }
        }
    }

    /// Runs statements that give no rows.
    fn run(&mut self, statements: &str) -> Result<(), Error> {
        let mut content = Vec::new();
        push_text(&mut content, statements);
        self.send(b'Q', &content)?;
        let first = self.receive()?;
        self.finish(first)
    }

    /// Runs a COPY with these rows.
    fn copy(&mut self, statement: &str, rows: &[u8]) -> Result<(), Error> {
        let mut content = Vec::new();
        push_text(&mut content, statement);
        self.send(b'Q', &content)?;
        loop {
            let message = self.receive()?;
            match message.kind {
                b'G' => break,
                b'E' => return Err(refusal(&message.content)),
                b'N' | b'S' => {}
                _ => return Err(Error::Unexpected),
            }
        }
        for piece in rows.chunks(PIECE) {
            self.send(b'd', piece)?;
        }
        self.send(b'c', &[])?;
        let first = self.receive()?;
        self.finish(first)
    }

    /// Takes messages until the server waits for the next statement.
    fn finish(&mut self, first: Message) -> Result<(), Error> {
        let mut message = first;
        loop {
            match message.kind {
                b'Z' => return Ok(()),
                b'E' => return Err(refusal(&message.content)),
                b'C' | b'I' | b'N' | b'S' | b'K' | b'T' | b'D' => {}
                _ => return Err(Error::Unexpected),
            }
            message = self.receive()?;
        }
    }

    fn send(&mut self, kind: u8, content: &[u8]) -> io::Result<()> {
        self.link.write_all(&[kind])?;
        self.link.write_all(&(content.len() as u32 + 4).to_be_bytes())?;
        self.link.write_all(content)?;
        self.link.flush()
    }

    fn receive(&mut self) -> Result<Message, Error> {
        let mut head = [0; 5];
        self.link.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = (u32::from_be_bytes(length) as usize).checked_sub(4).filter(|length| *length <= MOST);
        Ok(Message { kind, content: self.link.receive(length.ok_or(Error::Unexpected)?)? })
    }
}

/// Appends a text that ends with NUL, and has none in it.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend(text.bytes().filter(|byte| *byte != 0));
    out.push(0);
}

/// The text of an error: its message, and its code.
fn refusal(content: &[u8]) -> Error {
    let text = String::from_utf8_lossy(content);
    let field = |kind: char| text.split('\0').find_map(|field| field.strip_prefix(kind)).unwrap_or_default();
    Error::Refused(format!("{} ({})", field('M'), field('C')))
}

#[cfg(test)]
mod tests {
    use super::{push_copied, refusal};

    #[test]
    fn texts_are_escaped_and_errors_are_told() {
        let mut out = String::new();
        push_copied(&mut out, "a\tb\\N\r\n\0é");
        assert_eq!(out, "a\\tb\\\\N\\r\\n?é");
        let content = b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0";
        assert_eq!(refusal(content).to_string(), "PostgreSQL: relation \"t\" does not exist (42P01)");
    }
}
