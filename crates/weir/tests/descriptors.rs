//! Out of file descriptors the gateway serves what it has, does not spin, and recovers.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Gateway, LIMIT, Origin, RawClient, Start, get, route_to, route_with, timed, wait_until};

/// Opens connections until the gateway can take no more, and gives those that are served.
fn exhaust(gateway: &Gateway, most: usize) -> (Vec<RawClient>, Vec<RawClient>) {
    let (mut served, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..most {
        let mut client = gateway.client();
        client.send(get("/"));
        // It waits when the gateway says that it can accept nothing more; until then it may only be slow.
        let answer = wait_until("an answer, or no room for one", LIMIT, || {
            let answer = client.try_response_within(Duration::from_millis(300));
            (answer.is_some() || gateway.stderr().contains("cannot accept connections")).then_some(answer)
        });
        match answer {
            Some(answer) => {
                assert_eq!(answer.map(|r| r.status), Ok(200));
                served.push(client);
            }
            None => waiting.push(client),
        }
        if waiting.len() >= 5 {
            break;
        }
    }
    (served, waiting)
}

#[test]
fn a_gateway_without_descriptors_goes_on_and_recovers() {
    let config =
        route_with(json!({ "plugins": { "mocking": { "response_example": "mocked" } } }), json!({ "nodes": {} }));
    let gateway = Start::new(config).open_files(64).start();
    let (mut served, mut waiting) = exhaust(&gateway, 200);
    assert!(!waiting.is_empty(), "{} connections with 64 descriptors", served.len());
    assert!(served.len() >= 20, "only {} connections with 64 descriptors", served.len());

    // What is open is served on.
    for client in &mut served {
        assert_eq!(client.get("/").text(), "mocked");
    }
    // Waiting for descriptors is not work.
    let before = gateway.process.cpu();
    let ((), waited) = timed(|| waiting[0].expect_quiet(Duration::from_secs(1)));
    let used = gateway.process.cpu().saturating_sub(before);
    assert!(used < waited / 5, "{used:?} of processor time in {waited:?} of waiting");

    // And who waited is served when others have gone.
    served.truncate(10);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(gateway.get("/").status, 200);
    gateway.logged("escriptor");
}

#[test]
fn requests_that_find_no_descriptor_for_their_upstream_fail_alone() {
    let origin = Origin::hello();
    let gateway = Start::new(route_to(&[origin.node()])).open_files(64).start();
    let idle: Vec<RawClient> = (0..100).map(|_| gateway.client()).collect();
    let mut last = 0;
    wait_until("the descriptors to be used up", LIMIT, || {
        let now = gateway.process.open_files();
        let full = now == last && now >= 60;
        last = now;
        full.then_some(())
    });
    drop(idle);
    // Descriptors come back as the connections go; at the end everything is served.
    wait_until("the gateway to recover", LIMIT, || {
        let mut client = gateway.client();
        client.send(get("/"));
        client.try_response_within(Duration::from_secs(1))?.is_ok_and(|response| response.status == 200).then_some(())
    });
    for _ in 0..20 {
        assert_eq!(gateway.get("/").status, 200);
    }
}
