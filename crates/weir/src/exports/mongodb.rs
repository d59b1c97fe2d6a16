//! Usage in a collection of MongoDB, by commands in messages of its wire protocol (OP_MSG).
//!
//! A minute is deleted and inserted anew, with ids made of what a row is about: without transactions, which a single server
//! does not have, a reader may for a moment see less of it, and never anything twice.

use std::io::{self, Read, Write};

use anyhow::bail;
use url::Url;
use weir_usage::{Minute, Row, Sink};

use super::Server;
use super::bson::{Document, Field, fields};
use super::link::{self, Link};
use crate::scram::{Hash, Scram};

const OP_MSG: u32 = 2013;
/// Most bytes of an answer: as many as a document of MongoDB may have.
const MOST: usize = 16 << 20;
/// Rows that are inserted by one command.
const AT_ONCE: usize = 1_000;
/// Rounds of a login.
const ROUNDS: usize = 4;

/// A server with a database, and the database that knows the user.
pub(crate) struct Access {
    server: Server,
    source: String,
}

impl Access {
    pub(super) fn new(server: Server, url: &Url) -> anyhow::Result<Self> {
        if server.database.is_empty() || server.database.contains(['/', '.', ' ', '$']) {
            bail!("url: expected the name of a database: mongodb://HOST/DATABASE");
        }
        let source = url.query_pairs().find(|(name, _)| name == "authSource").map(|(_, value)| value.into_owned());
        Ok(Self { server, source: source.unwrap_or_else(|| "admin".to_owned()) })
    }

    /// The collection of a URL.
    ///
    /// # Errors
    /// The URL is none of MongoDB, or has an argument without an effect.
    pub(crate) fn of(url: &str, collection: &str, trusted: &str) -> anyhow::Result<Self> {
        let url = Url::parse(url).map_err(|error| anyhow::anyhow!("url: it is no URL: {error}"))?;
        let server = Server::of(&url, &["mongodb"], 27_017, ("tls", trusted), (collection, ""))?;
        Self::new(server, &url)
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// The server does not answer, or refuses the login.
    pub(crate) fn connect(&self) -> Result<Connection, String> {
        Connection::open(&self.server, &self.source)
    }

    /// Inserts documents in BSON.
    ///
    /// # Errors
    /// Not all of them were inserted.
    pub(crate) fn insert(
        &self,
        connection: &mut Connection,
        documents: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), String> {
        let documents = documents.map(Document::written);
        let insert = Document::new().text("insert", &self.server.table).list("documents", documents);
        connection.run(insert, &self.server.database).map(drop)
    }
}

/// A collection.
pub(super) struct Collection {
    access: Access,
    connection: Option<Connection>,
    has_index: bool,
}

impl Collection {
    pub(super) fn new(server: Server, url: &Url) -> anyhow::Result<Self> {
        Ok(Self { access: Access::new(server, url)?, connection: None, has_index: false })
    }

    fn document(&self, start: u64, row: &Row) -> Document {
        let [api, route, consumer, key, plan] = &row.dimensions;
        // Names have no line ends, so that different rows have different ids.
        let parts =
            [self.access.server.gateway.as_str(), &start.to_string(), api, route, consumer, key, plan].join("\n");
        let document = Document::new()
            .text("_id", &format!("{parts}\n{}", row.class))
            .time("time", millis(start))
            .text("gateway", &self.access.server.gateway);
        let texts = Row::DIMENSIONS.iter().zip(&row.dimensions);
        let document = texts.fold(document, |document, (name, text)| document.text(name, text));
        let numbers = Row::SUMS.iter().chain(&Row::PERCENTILES).zip(row.sums.iter().chain(&row.percentiles));
        numbers.fold(document.int("status", row.class.into()), |document, (name, number)| {
            document.int(name, i64::try_from(*number).unwrap_or(i64::MAX))
        })
    }

    fn replace(&mut self, connection: &mut Connection, minutes: &[Minute]) -> Result<(), String> {
        let (database, table) = (self.access.server.database.clone(), self.access.server.table.clone());
        if !self.has_index {
            let key = Document::new().int("gateway", 1).int("time", 1);
            let index = Document::new().document("key", key).text("name", "gateway_time");
            let indexes = Document::new().text("createIndexes", &table).list("indexes", [index].into_iter());
            connection.run(indexes, &database)?;
            self.has_index = true;
        }
        let times = Document::new().times("$in", minutes.iter().map(|minute| millis(minute.start)));
        let which = Document::new().text("gateway", &self.access.server.gateway).document("time", times);
        let delete = Document::new().document("q", which).int("limit", 0);
        connection.run(Document::new().text("delete", &table).list("deletes", [delete].into_iter()), &database)?;
        let rows = minutes.iter().flat_map(|minute| minute.rows.iter().map(move |row| (minute.start, row)));
        let documents: Vec<Document> = rows.map(|(start, row)| self.document(start, row)).collect();
        for some in documents.chunks(AT_ONCE) {
            connection
                .run(Document::new().text("insert", &table).list("documents", some.iter().cloned()), &database)?;
        }
        Ok(())
    }
}

impl Sink for Collection {
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.access.connect()?,
        };
        self.replace(&mut connection, minutes)?;
        self.connection = Some(connection);
        Ok(())
    }
}

fn millis(start: u64) -> i64 {
    (start * 1000).cast_signed()
}

/// A connection that is logged in.
pub(crate) struct Connection {
    link: Link,
    requests: u32,
}

impl Connection {
    fn open(server: &Server, source: &str) -> Result<Self, String> {
        let stream = link::connect(&server.host, server.port).map_err(|error| error.to_string())?;
        let link = match &server.tls {
            None => Link::Plain(stream),
            Some(config) => Link::secure(stream, &server.host, config).map_err(|error| error.to_string())?,
        };
        let mut connection = Self { link, requests: 0 };
        connection.run(Document::new().int("hello", 1), "admin")?;
        if !server.user.is_empty() {
            connection.log_in(server, source)?;
        }
        Ok(connection)
    }

    fn log_in(&mut self, server: &Server, source: &str) -> Result<(), String> {
        let mut scram = Scram::new(Hash::Sha256, &server.user, &server.password)?;
        let start = Document::new().int("saslStart", 1).text("mechanism", "SCRAM-SHA-256");
        let mut answer = self.run(start.binary("payload", scram.first().as_bytes()), source)?;
        for round in 0..ROUNDS {
            let find = |wanted: &str| answer.iter().find(|(name, _)| name == wanted).map(|(_, field)| field);
            let is_done = matches!(find("done"), Some(Field::Number(number)) if *number != 0.0);
            let Some(Field::Number(conversation)) = find("conversationId") else { break };
            let Some(Field::Binary(payload)) = find("payload") else { break };
            let payload = String::from_utf8_lossy(payload);
            let reply = match round {
                0 => scram.answer(&payload)?,
                1 => {
                    scram.finish(&payload)?;
                    String::new()
                }
                _ => String::new(),
            };
            if is_done && round > 0 {
                return Ok(());
            }
            let go_on = Document::new().int("saslContinue", 1).int("conversationId", *conversation as i64);
            answer = self.run(go_on.binary("payload", reply.as_bytes()), source)?;
        }
        Err("MongoDB: the login does not come to an end".to_owned())
    }

    /// Runs a command. Gives the fields of the answer.
    fn run(&mut self, command: Document, database: &str) -> Result<Vec<(String, Field)>, String> {
        let answer = self.exchange(&command.text("$db", database).bytes()).map_err(|error| error.to_string())?;
        let found = fields(&answer).ok_or("MongoDB sends an unexpected message")?;
        let find = |wanted: &str| found.iter().find(|(name, _)| name == wanted).map(|(_, field)| field);
        let has_ended_well = matches!(find("ok"), Some(Field::Number(number)) if *number == 1.0);
        // An empty list has 5 bytes.
        let has_write_errors = matches!(find("writeErrors"), Some(Field::Nested(length)) if *length > 5);
        if has_ended_well && !has_write_errors {
            return Ok(found);
        }
        let said = match find("errmsg") {
            Some(Field::Text(text)) => text.as_str(),
            _ => "some documents could not be written",
        };
        Err(format!("MongoDB: {said}"))
    }

    fn exchange(&mut self, document: &[u8]) -> io::Result<Vec<u8>> {
        self.requests = self.requests.wrapping_add(1);
        let length = 16 + 4 + 1 + document.len();
        for number in [length as u32, self.requests, 0, OP_MSG, 0] {
            self.link.write_all(&number.to_le_bytes())?;
        }
        self.link.write_all(&[0])?;
        self.link.write_all(document)?;
        self.link.flush()?;
        let mut head = [0; 21];
        self.link.read_exact(&mut head)?;
        let number =
            |at: usize| head.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes);
        let rest = (number(0) as usize).checked_sub(head.len()).filter(|rest| *rest <= MOST);
        let is_answer = number(8) == self.requests && number(12) == OP_MSG && head.last() == Some(&0);
        match rest {
            Some(rest) if is_answer => self.link.receive(rest),
            _ => Err(io::Error::other("MongoDB sends an unexpected message")),
        }
    }
}
