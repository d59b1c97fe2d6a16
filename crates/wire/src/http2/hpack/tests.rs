//! Appendix C of RFC 7541, and properties of both directions.

use super::decode::integer;
use super::encode::push_integer;
use super::tables::Table;
use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

type Fields = Vec<(String, String)>;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, crate::http2::Error> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sink = |f: Field<'_>| fields.push((text(f.name), text(f.value)));
    assert_eq!(decoder.decode(block, usize::MAX, &mut Vec::new(), sink)?, Outcome::Complete);
    Ok(fields)
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Appendix C.1.
#[test]
fn integers() {
    for (value, bits, coded) in [
        (10, 5, "0a"),
        (1337, 5, "1f 9a0a"),
        (42, 8, "2a"),
        (0, 7, "00"),
        (30, 5, "1e"),
        (31, 5, "1f 00"),
        (127 + 127, 7, "7f 7f"),
        (127 + 128, 7, "7f 8001"),
        ((1 << 28) - 1 + 127, 7, "7f ffff ff7f"),
    ] {
        let coded = bytes(coded);
        let mut out = Vec::new();
        push_integer(&mut out, 0, bits, value);
        assert_eq!(out, coded, "{value}");
        let mut rest = coded.as_slice();
        assert_eq!((integer(&mut rest, bits), rest.len()), (Ok(value), 0), "{value}");
        for len in 0..coded.len() {
            assert!(integer(&mut &coded[..len], bits).is_err(), "{value}, cut");
        }
    }
    for coded in ["7f 8080 8080 00", "7f 8080 8080 01", "7f ffff ffff ffff ffff ffff ff01"] {
        assert_eq!(integer(&mut bytes(coded).as_slice(), 7), Err("integer too large"), "{coded}");
    }
}

/// A block, its fields, and the size of the dynamic table afterwards.
type Example = (&'static str, &'static str, usize);

/// Appendix C.2 to C.6: connections by the largest size of the table.
#[test]
fn examples_of_the_rfc() {
    const GET: &str = ":method GET|:scheme http|:path /|:authority www.example.com";
    const GET_NO_CACHE: &str = ":method GET|:scheme http|:path /|:authority www.example.com|cache-control no-cache";
    const GET_CUSTOM: &str =
        ":method GET|:scheme https|:path /index.html|:authority www.example.com|custom-key custom-value";
    const FOUND: &str =
        ":status 302|cache-control private|date Mon, 21 Oct 2013 20:13:21 GMT|location https://www.example.com";
    const TEMPORARY: &str =
        ":status 307|cache-control private|date Mon, 21 Oct 2013 20:13:21 GMT|location https://www.example.com";
    const OK: &str = ":status 200|cache-control private|date Mon, 21 Oct 2013 20:13:22 GMT|location https://www.example.com|\
        content-encoding gzip|set-cookie foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    let connections: [(u32, &[Example]); 8] = [
        (4096, &[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key custom-header", 55)]),
        (4096, &[("040c 2f73 616d 706c 652f 7061 7468", ":path /sample/path", 0)]),
        (4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", "password secret", 0)]),
        (4096, &[("82", ":method GET", 0)]),
        (
            4096,
            &[
                ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", GET, 57),
                ("8286 84be 5808 6e6f 2d63 6163 6865", GET_NO_CACHE, 110),
                ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", GET_CUSTOM, 164),
            ],
        ),
        (
            4096,
            &[
                ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", GET, 57),
                ("8286 84be 5886 a8eb 1064 9cbf", GET_NO_CACHE, 110),
                ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", GET_CUSTOM, 164),
            ],
        ),
        (
            256,
            &[
                (
                    "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
                     3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                    FOUND,
                    222,
                ),
                ("4803 3330 37c1 c0bf", TEMPORARY, 222),
                (
                    "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
                     7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
                     6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
                    OK,
                    215,
                ),
            ],
        ),
        (
            256,
            &[
                (
                    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad \
                     1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                    FOUND,
                    222,
                ),
                ("4883 640e ffc1 c0bf", TEMPORARY, 222),
                (
                    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
                     e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                    OK,
                    215,
                ),
            ],
        ),
    ];
    for (size, blocks) in connections {
        let mut decoder = Decoder::new(size);
        let mut update = Vec::new();
        push_integer(&mut update, 0x20, 5, size as usize);
        assert_eq!(decode(&mut decoder, &update), Ok(Vec::new()));
        for (block, fields, table) in blocks {
            let expected: Fields =
                fields.split('|').map(|f| f.split_once(' ').unwrap()).map(|(n, v)| (n.into(), v.into())).collect();
            assert_eq!(decode(&mut decoder, &bytes(block)), Ok(expected), "{block}");
            assert_eq!(decoder.table().size(), *table, "{block}");
        }
    }
}

#[test]
fn wrong_blocks_end_the_connection() {
    for (block, reason) in [
        ("80", "field of index 0"),
        ("be", "field of an index beyond the tables"),
        ("7f 00 00", "field of an index beyond the tables"),
        ("ff ff ff 7f", "field of an index beyond the tables"),
        ("ff ffff ffff 7f", "integer too large"),
        ("ff", "header block that ends within an integer"),
        ("40", "header block that ends within an integer"),
        ("00 05 6162", "header block that ends within a text"),
        ("00 01 61", "header block that ends within an integer"),
        ("00 01 61 05 61", "header block that ends within a text"),
        ("82 20", "size update of the dynamic table behind a field"),
        ("3f e2 1f", "dynamic table larger than SETTINGS_HEADER_TABLE_SIZE"),
        ("20 20 20", "more than two size updates of the dynamic table"),
        ("00 81 1e 00", "Huffman-coded text that ends within a code, or with wrong padding"),
        ("00 84 ffff ffff 00", "EOS in a Huffman-coded text"),
    ] {
        let error = decode(&mut Decoder::new(4096), &bytes(block)).expect_err(block);
        assert_eq!(
            error,
            crate::http2::Error::connection(crate::http2::ErrorCode::CompressionError, reason),
            "{block}"
        );
    }
    // Up to two updates may begin a block, the largest size included.
    assert_eq!(decode(&mut Decoder::new(4096), &bytes("20 3f e1 1f 82")).map(|fields| fields.len()), Ok(1));
}

#[test]
fn a_limit_below_the_default_holds_once_it_is_acknowledged() {
    let add = bytes("40 01 61 01 62");
    let mut decoder = Decoder::new(64);
    // The peer does not know the limit yet.
    for _ in 0..3 {
        decode(&mut decoder, &add).unwrap();
    }
    assert_eq!(decoder.table().len(), 3);
    decoder.settings_acknowledged();
    assert!(decode(&mut decoder, &add).is_err(), "a block without a size update");

    let mut decoder = Decoder::new(64);
    decode(&mut decoder, &add).unwrap();
    decoder.settings_acknowledged();
    decode(&mut decoder, &[bytes("3f 21"), add.clone()].concat()).unwrap();
    decode(&mut decoder, &add).unwrap();
    assert_eq!(decoder.table().len(), 1, "an entry is 34 bytes");
}

/// A bomb: one large entry, and many references to it.
#[test]
fn fields_beyond_the_limit_are_not_handed_on() {
    let mut decoder = Decoder::new(4096);
    let mut block = vec![0x40, 1, b'a'];
    push_integer(&mut block, 0, 7, 4000);
    block.resize(block.len() + 4000, b'x');
    block.resize(block.len() + 10_000, 0x80 | 62);
    block.extend(bytes("40 01 62 01 63"));
    let (mut fields, mut scratch) = (0, Vec::new());
    let outcome = decoder.decode(&block, 3 * (4001 + 32), &mut scratch, |_| fields += 1);
    assert_eq!((outcome, fields), (Ok(Outcome::TooLarge), 3));
    assert_eq!(decode(&mut decoder, &[0x80 | 62]), Ok(vec![("b".into(), "c".into())]), "the table is right");
}

#[test]
fn the_table_is_bounded_and_right() {
    let (mut table, mut random) = (Table::new(4096), Random(1));
    let mut all: Vec<Vec<u8>> = Vec::new();
    for round in 0..10_000 {
        if random.below(200) == 0 {
            table.set_max(random.below(4097));
        }
        let largest = [40, 300, 4200][random.below(3)];
        all.push(vec![round as u8; random.below(largest)]);
        table.add(b"x", all.last().unwrap());
        assert!(
            table.size() <= table.max() && table.memory() <= 4096 + 128 * 12,
            "{} {}",
            table.size(),
            table.memory()
        );
        // The entries are the last ones that were added, unless one was too large and emptied the table.
        for (number, value) in all.iter().rev().enumerate().take(table.len()) {
            assert_eq!(table.get(number), Some((&b"x"[..], value.as_slice())));
        }
        assert_eq!(table.get(table.len()), None);
        if table.len() == 0 {
            all.clear();
        }
    }
}

#[test]
fn fields_round_trip() {
    const NAMES: [&str; 10] = [
        "Server",
        "content-type",
        "X-Request-Id",
        "date",
        "Set-Cookie",
        "authorization",
        "accept-encoding",
        "x-a",
        "location",
        "ETag",
    ];
    let (mut encoder, mut decoder, mut random) = (Encoder::new(), Decoder::new(4096), Random(7));
    for round in 0..5_000 {
        if random.below(50) == 0 {
            // The peer's decoder may lower and raise its limit; both are announced in the next block.
            encoder.set_peer_limit(random.below(5000) as u32);
            encoder.set_peer_limit(random.below(5000) as u32);
        }
        let (mut out, mut expected) = (Vec::new(), Fields::new());
        encoder.begin(&mut out);
        match random.below(3) {
            0 => {
                let status = [200, 204, 206, 304, 400, 404, 500, 418, 999][random.below(9)];
                encoder.push_status(&mut out, status);
                expected.push((":status".into(), status.to_string()));
            }
            _ => {
                let method = ["GET", "POST", "PUT", "OPTIONS"][random.below(4)];
                let path = ["/", "/index.html", "/a?b"][random.below(3)];
                let scheme = ["http", "https"][random.below(2)];
                encoder.push_method(&mut out, method.as_bytes());
                encoder.push_scheme(&mut out, scheme.as_bytes());
                encoder.push_authority(&mut out, b"host.test");
                encoder.push_path(&mut out, path.as_bytes());
                encoder.push_protocol(&mut out, b"websocket");
                for (name, value) in [
                    (":method", method),
                    (":scheme", scheme),
                    (":authority", "host.test"),
                    (":path", path),
                    (":protocol", "websocket"),
                ] {
                    expected.push((name.into(), value.into()));
                }
            }
        }
        for _ in 0..random.below(12) {
            let name = NAMES[random.below(NAMES.len())];
            let value = match random.below(3) {
                0 => "gzip, deflate".to_owned(),
                1 => format!("value {}", random.below(30)).repeat(random.below(10)),
                _ => format!("{round}"),
            };
            encoder.push(&mut out, name.as_bytes(), value.as_bytes());
            expected.push((name.to_ascii_lowercase(), value));
        }
        assert_eq!(decode(&mut decoder, &out), Ok(expected));
    }
}

#[test]
fn what_repeats_becomes_one_byte() {
    let mut encoder = Encoder::new();
    let fields = [("Server", "weir"), ("Content-Type", "application/json"), ("X-Cache", "hit"), ("Via", "1.1 weir")];
    let lengths: Vec<usize> = (0..4)
        .map(|round| {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.push_status(&mut out, 200);
            for (name, value) in fields {
                encoder.push(&mut out, name.as_bytes(), value.as_bytes());
            }
            // A value that is new each time never enters the table.
            encoder.push(&mut out, b"x-request-id", format!("{round:032}").as_bytes());
            out.len()
        })
        .collect();
    let literal = 1 + 12 + 1 + 32 + 1;
    assert_eq!(lengths[2..], [1 + 4 + literal; 2]);
    assert_eq!(encoder.table().len(), 4);
}

#[test]
fn credentials_enter_no_table() {
    for name in ["Authorization", "proxy-authorization", "Cookie", "Set-Cookie", "apikey", "X-API-KEY"] {
        let mut encoder = Encoder::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.push(&mut out, name.as_bytes(), b"secret");
            let mut seen = false;
            let sink = |field: Field<'_>| seen = field.never_indexed;
            let _ = Decoder::new(4096).decode(&out, 4096, &mut Vec::new(), sink).unwrap();
            assert!(seen, "{name}");
        }
        assert_eq!(encoder.table().len(), 0);
    }
    let mut out = Vec::new();
    Encoder::new().push_never_indexed(&mut out, b"X-Other", b"secret");
    assert_eq!(out[0], 0x10);
}

/// Changed and random blocks never panic, never fill more than the table, and never hand on more than the limit.
#[test]
fn no_block_panics() {
    let mut random = Random(3);
    let good = bytes("8286 84be 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf 0f0d 0232 30 5886 a8eb 1064 9cbf c0");
    let (mut decoder, mut scratch, mut errors) = (Decoder::new(1000), Vec::new(), 0);
    for round in 0..100_000 {
        let mut block = good.clone();
        if round % 2 == 0 {
            block = (0..random.below(100)).map(|_| random.below(256) as u8).collect();
        } else {
            for _ in 0..random.below(4) {
                let at = random.below(block.len());
                block[at] = random.below(256) as u8;
            }
        }
        let mut size = 0;
        let outcome =
            decoder.decode(&block, 200, &mut scratch, |field| size += field.name.len() + field.value.len() + 32);
        assert!(size <= 200 && decoder.table().memory() <= 4096 + 128 * 12);
        errors += usize::from(outcome.is_err());
    }
    assert!(errors > 1000 && errors < 100_000, "{errors}");
}
