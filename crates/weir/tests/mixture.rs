//! Everything at once: pipelined requests of all kinds, in random pieces, to an origin that answers in all ways. Whatever
//! happens, nobody gets another one's request or answer, or a part of it.

use std::io::Write;
use std::thread;

use crate::harness::{
    Connection, Framing, Gateway, LIMIT, Origin, RawClient, Request, Start, chunked, route_to, wait_until,
};

/// Numbers that look random and are the same each time (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A length: often none, often small, at times around the size of a buffer, rarely long.
    fn length(&mut self) -> usize {
        let bound = [1, 10, 300, 5000, 20_000, 200_000][self.below(6) as usize];
        self.below(bound) as usize
    }
}

/// A request, and the expected response.
#[derive(Clone, Debug)]
struct Plan {
    id: u64,
    method: &'static str,
    body: usize,
    chunked: bool,
    answer: Kind,
    length: usize,
    /// Interim responses before the answer.
    interim: u64,
    /// The answer comes before the request's body is read.
    early: bool,
    /// The client asks for the connection to be closed.
    last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Length,
    Chunked,
    UntilClose,
    LengthAndClose,
    NoContent,
}

impl Plan {
    fn make(random: &mut Random, id: u64) -> Self {
        let method = ["GET", "POST", "PUT", "HEAD", "DELETE"][random.below(5) as usize];
        let body = if matches!(method, "POST" | "PUT") || random.one_in(5) { random.length() } else { 0 };
        let answer = [
            Kind::Length,
            Kind::Length,
            Kind::Chunked,
            Kind::Chunked,
            Kind::UntilClose,
            Kind::LengthAndClose,
            Kind::NoContent,
        ][random.below(7) as usize];
        Self {
            id,
            method,
            body,
            chunked: random.one_in(2),
            answer,
            length: if answer == Kind::NoContent { 0 } else { random.length() },
            interim: if random.one_in(6) { random.below(3) } else { 0 },
            early: random.one_in(8),
            last: random.one_in(40),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let Self { id, method, answer, length, interim, early, .. } = self;
        let mut head = format!(
            "{method} /{id} HTTP/1.1\r\nHost: a.test\r\nX-Answer: {answer:?}\r\nX-Length: {length}\r\nX-Interim: {interim}\r\nX-Early: {early}\r\n"
        );
        if self.last {
            head += "Connection: close\r\n";
        }
        let body = pattern(*id, self.body);
        if self.body > 0 && self.chunked {
            head += "Transfer-Encoding: chunked\r\n\r\n";
            [head.as_bytes(), &chunked(&body, 1 + self.body / 7)].concat()
        } else if self.body > 0 {
            head += &format!("Content-Length: {}\r\n\r\n", self.body);
            [head.as_bytes(), &body].concat()
        } else {
            (head + "\r\n").into_bytes()
        }
    }
}

/// Bytes that belong to one id only.
fn pattern(id: u64, length: usize) -> Vec<u8> {
    let mut random = Random(id);
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| random.next().to_be_bytes()).collect();
    bytes.truncate(length);
    bytes
}

fn id_of(request: &Request) -> u64 {
    request.target.trim_start_matches('/').parse().expect("an id")
}

/// Answers as each request asks for.
fn origin() -> Origin {
    Origin::scripted(|connection| {
        while let Some(head) = connection.head() {
            let field = |name: &str| head.field(name).unwrap_or_else(|| panic!("no {name} in {head:?}")).to_owned();
            let (answer, early) = (field("x-answer"), field("x-early") == "true");
            let (length, interim) =
                (field("x-length").parse().expect("a length"), field("x-interim").parse().expect("a count"));
            let id = id_of(&head);
            let announced = head.framing;
            let is_head = head.method == "HEAD";
            let mut unread = Some(head);
            if !early && !take_body(connection, &mut unread, announced, id) {
                return;
            }
            for _ in 0..interim {
                connection.send(format!("HTTP/1.1 103 Early Hints\r\nX-Id: {id}\r\n\r\n"));
            }
            if !send_answer(connection, id, &answer, length, is_head)
                || !take_body(connection, &mut unread, announced, id)
                || matches!(answer.as_str(), "UntilClose" | "LengthAndClose")
            {
                return;
            }
        }
    })
}

/// Reads the body, if that has not been done; false when the connection ended.
fn take_body(connection: &mut Connection, unread: &mut Option<Request>, announced: Framing, id: u64) -> bool {
    let Some(head) = unread.take() else { return true };
    let Some(request) = connection.body_of(head) else { return false };
    assert!(request.body == pattern(id, request.body.len()), "the body of request {id} is another one's");
    if let Framing::Length(length) = announced {
        assert_eq!(request.body.len(), length);
    }
    true
}

fn send_answer(connection: &mut Connection, id: u64, kind: &str, length: usize, is_head: bool) -> bool {
    let body = pattern(id ^ u64::MAX, length);
    let (fields, encoded) = match kind {
        "NoContent" => {
            return connection.send(format!("HTTP/1.1 204 No Content\r\nX-Id: {id}\r\n\r\n"));
        }
        "Chunked" => ("Transfer-Encoding: chunked\r\n".to_owned(), chunked(&body, 1 + length / 5)),
        // An answer to HEAD has no body whose end could be the connection's.
        "UntilClose" => (if is_head { "Connection: close\r\n" } else { "" }.to_owned(), body),
        "LengthAndClose" => (format!("Content-Length: {length}\r\nConnection: close\r\n"), body),
        _ => (format!("Content-Length: {length}\r\n"), body),
    };
    let head = format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\n{fields}\r\n");
    if is_head {
        return connection.send(head);
    }
    // In pieces, whose borders fall anywhere.
    let message = [head.as_bytes(), &encoded].concat();
    let mut random = Random(id);
    let mut rest = &message[..];
    while !rest.is_empty() {
        let (piece, more) = rest.split_at((1 + random.below(30_000) as usize).min(rest.len()));
        if !connection.send(piece) {
            return false;
        }
        rest = more;
    }
    true
}

/// Sends these requests in a row and reads their answers; how many were answered before the gateway closed.
fn exchange(client: &mut RawClient, plans: &[Plan], random: &mut Random) -> usize {
    let bytes: Vec<u8> = plans.iter().flat_map(Plan::encode).collect();
    let mut sender = client.sender();
    let mut pieces = Random(random.next());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, more) = rest.split_at((1 + pieces.below(20_000) as usize).min(rest.len()));
                // The gateway may close after an answer; the rest is sent again elsewhere.
                if sender.write_all(piece).is_err() {
                    return;
                }
                rest = more;
            }
        });
        for (answered, plan) in plans.iter().enumerate() {
            if !answer_to(client, plan) {
                return answered + 1;
            }
        }
        plans.len()
    })
}

/// Reads one answer; whether another one may follow.
fn answer_to(client: &mut RawClient, plan: &Plan) -> bool {
    let own = plan.id.to_string();
    for _ in 0..plan.interim {
        let head = client.head();
        assert_eq!(
            (head.status().map(|(status, ..)| status), head.fields.get("x-id")),
            (Ok(103), Some(own.as_str())),
            "{plan:?}"
        );
    }
    let response =
        client.try_response_to(plan.method).unwrap_or_else(|fault| panic!("no answer to {plan:?}: {fault:?}"));
    let expected = if plan.answer == Kind::NoContent { 204 } else { 200 };
    assert_eq!(response.status, expected, "{plan:?}: {:?} {}", response.fields, response.text());
    assert_eq!(response.field("x-id"), Some(own.as_str()), "another one's answer to {plan:?}");
    let length = if plan.method == "HEAD" { 0 } else { plan.length };
    assert!(
        response.body == pattern(plan.id ^ u64::MAX, length),
        "{plan:?}: {} bytes of a wrong body",
        response.body.len()
    );
    assert!(!plan.last || !response.keeps_connection(), "{plan:?}: {:?}", response.fields);
    response.keeps_connection()
}

#[test]
fn nobody_gets_what_is_another_ones() {
    const THREADS: u64 = 6;
    const REQUESTS: u64 = 600;
    // Always the same mixture, unless another one is asked for.
    let seed: u64 = std::env::var("MIXTURE_SEED").map_or(0, |text| text.parse().expect("MIXTURE_SEED is a number"));
    let origin = origin();
    let gateway = Start::new(route_to(&[origin.node()])).workers(2).start();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let gateway: &Gateway = &gateway;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(1000) + number);
                let mut client = gateway.client();
                let mut waiting: Vec<Plan> = Vec::new();
                let mut made = 0;
                while made < REQUESTS || !waiting.is_empty() {
                    for _ in 0..random.below(7) {
                        if made < REQUESTS {
                            waiting.push(Plan::make(&mut random, number * REQUESTS + made));
                            made += 1;
                        }
                    }
                    let answered = exchange(&mut client, &waiting, &mut random);
                    let closed = answered < waiting.len() || waiting.last().is_some_and(|plan| plan.last || plan.early);
                    waiting.drain(..answered);
                    if closed {
                        client = gateway.client();
                    }
                }
            });
        }
    });
    gateway.await_metric("weir_upstream_connections", &[("state", "active")], 0.0);
    gateway.await_metric("apisix_nginx_http_current_connections", &[("state", "active")], 0.0);
    assert_eq!(gateway.metric("weir_worker_panics_total", &[]), 0.0);
    let idle = gateway.metric("weir_upstream_connections", &[("state", "idle")]);
    wait_until("the closed connections to be gone", LIMIT, || (origin.open() as f64 <= idle).then_some(()));
}
