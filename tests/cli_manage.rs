//! The commands that manage, against a server that says what the test wants.

#![allow(missing_docs, clippy::unwrap_used)]

mod cli_support;

use cli_support::{Seen, Trove, tcp_server};

const ADMIN: &str = "0123456789abcdef";

/// Runs a command against a server that gives `answer`.
fn run(args: &[&str], answer: &'static str) -> (cli_support::Ran, Seen) {
    let trove = Trove::new().env("TROVE_ADMIN_KEY", ADMIN);
    trove.file("hunt.json", r#"{"id":"h","name":"H","treasures":[]}"#);
    let (url, seen) = tcp_server(answer);
    let ran = trove.run(&[args, &["--server", &url]].concat());
    (ran, seen.recv().unwrap())
}

#[track_caller]
fn asks(args: &[&str], answer: &'static str, line: &str, body: &str, out: &str) {
    let (ran, seen) = run(args, answer);
    assert_eq!(ran.succeeds(), out);
    assert_eq!(seen.line, format!("{line} HTTP/1.1"));
    assert_eq!(seen.body, body);
    assert_eq!(
        seen.authorization.as_deref(),
        Some("Bearer 0123456789abcdef")
    );
}

const OPEN: &str = "200 OK\n{\"id\":\"h\",\"state\":\"open\",\"generation\":2,\"treasures\":3}";

#[test]
fn a_hunt_is_put_and_taken_through_its_life() {
    let document = r#"{"id":"h","name":"H","treasures":[]}"#;
    let created =
        "201 Created\n{\"id\":\"h\",\"state\":\"draft\",\"generation\":1,\"treasures\":1}";
    asks(
        &["hunt", "put", "hunt.json"],
        created,
        "PUT /hunts/h",
        document,
        "h is draft, 1 treasure\n",
    );
    for step in ["open", "close", "archive"] {
        let line = format!("POST /hunts/h/{step}");
        asks(
            &["hunt", step, "h"],
            OPEN,
            &line,
            "",
            "h is open, 3 treasures\n",
        );
    }
}

#[test]
fn hunts_are_listed_in_aligned_columns() {
    let answer = "200 OK\n{\"hunts\":[{\"id\":\"a\",\"name\":\"A long one\",\"state\":\"open\",\"treasures\":7884,\
        \"recorded\":100,\"credited\":60,\"expired\":30,\"pending\":9,\"revoked\":1},{\"id\":\"berlin\",\"name\":\"B\",\
        \"state\":\"archived\",\"treasures\":1,\"recorded\":0,\"credited\":0,\"expired\":0,\"pending\":0,\"revoked\":0}]}";
    let table = "\
HUNT    STATE     TREASURES  RECORDED  CREDITED  EXPIRED  PENDING  REVOKED  NAME
a       open           7884       100        60       30        9        1  A long one
berlin  archived          1         0         0        0        0        0  B
";
    asks(&["hunt", "list"], answer, "GET /hunts", "", table);
}

#[test]
fn a_catalogue_is_printed_as_it_comes_and_needs_no_key() {
    let trove = Trove::new();
    let (url, seen) = tcp_server("200 OK\n{\"id\":\"h\"}");
    let ran = trove.run(&["hunt", "show", "h", "--server", &format!("{url}/behind/")]);
    assert_eq!(ran.succeeds(), "{\"id\":\"h\"}\n");
    let seen = seen.recv().unwrap();
    assert_eq!(seen.line, "GET /behind/hunts/h HTTP/1.1");
    assert_eq!(seen.authorization, None);
}

#[test]
fn coins_are_granted_and_taken_back() {
    let answer = "200 OK\n{\"coins\":-5,\"balance\":7,\"seq\":9,\"at\":1,\"duplicate\":false}";
    asks(
        &[
            "adjust", "h", "anna", "-5", "--reason", "a typo", "--key", "k1",
        ],
        answer,
        "POST /hunts/h/players/anna/adjust",
        r#"{"coins":-5,"key":"k1","reason":"a typo"}"#,
        "anna -5 coins: balance 7\n",
    );
    let answer = "200 OK\n{\"coins\":5,\"balance\":7,\"seq\":9,\"at\":1,\"duplicate\":true}";
    asks(
        &["adjust", "h", "a@b:c", "+5", "--reason", "r", "--key", "k"],
        answer,
        "POST /hunts/h/players/a@b:c/adjust",
        r#"{"coins":5,"key":"k","reason":"r"}"#,
        "a@b:c +5 coins, made before: balance 7\n",
    );
}

#[test]
fn what_expired_is_reinstated() {
    asks(
        &[
            "reinstate",
            "h",
            "--from",
            "2027-01-15T08:00:00Z",
            "--to",
            "1800000005000",
        ],
        "200 OK\n{\"finds\":3,\"coins\":12,\"refused\":1}",
        "POST /hunts/h/reinstate",
        r#"{"from":1800000000000,"to":1800000005000}"#,
        "reinstated 3 finds, 12 coins\nleft 1 finds: the balance would be out of range\n",
    );
}

#[test]
fn a_problem_becomes_one_line_and_a_status() {
    let open = &["hunt", "open", "h"];
    for (answer, status, part) in [
        (
            "409 Conflict\n{\"title\":\"Conflict\",\"detail\":\"the hunt is\\nover\",\"code\":\"hunt_archived\"}",
            1,
            "refused: the hunt is over (hunt_archived)",
        ),
        ("404 Not Found\n{}", 1, "refused: 404 Not Found"),
        (
            "401 Unauthorized\n{\"code\":\"token_missing\"}",
            2,
            "(token_missing); set TROVE_ADMIN_KEY",
        ),
        (
            "403 Forbidden\n{\"code\":\"admin_key_needed\"}",
            2,
            "set TROVE_ADMIN_KEY, or name the server's store",
        ),
        (
            "503 Service Unavailable\n{\"code\":\"store_full\"}",
            3,
            "(store_full)",
        ),
        ("502 Bad Gateway\n<html>", 3, "refused: 502 Bad Gateway"),
        ("200 OK\n<html>", 3, "is it a Trove server of this version?"),
    ] {
        run(open, answer).0.fails(status, part);
    }
    let one = "422 Unprocessable Entity\n{\"detail\":\"must be 1 or more\",\"code\":\"invalid_hunt\",\"pointer\":\"/a\",\
        \"errors\":[{\"pointer\":\"/a\",\"detail\":\"must be 1 or more\"}]}";
    run(&["hunt", "put", "hunt.json"], one)
        .0
        .fails(1, "refused: /a: must be 1 or more (invalid_hunt)");
    let many = "422 Unprocessable Entity\n{\"detail\":\"d\",\"code\":\"invalid_hunt\",\"pointer\":\"/a\",\"errors\":[\
        {\"pointer\":\"/a\",\"detail\":\"d\"},{\"pointer\":\"/b\",\"detail\":\"e\"},{\"pointer\":\"/c\",\"detail\":\"f\"},\
        {\"pointer\":\"/d\",\"detail\":\"g\"}]}";
    run(&["hunt", "put", "hunt.json"], many)
        .0
        .fails(1, "refused: /a: d, /b: e, /c: f, and 1 more (invalid_hunt)");
}

#[test]
fn a_server_that_is_not_there_is_out_of_reach() {
    let trove = Trove::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{free}");
    trove
        .run(&["hunt", "show", "h", "--server", &url])
        .fails(3, &format!("cannot reach {url}: Connection refused"));
}

#[test]
fn a_file_that_is_no_hunt_document_is_not_sent() {
    let trove = Trove::new().env("TROVE_ADMIN_KEY", ADMIN);
    trove
        .run(&["hunt", "put", "none.json"])
        .fails(2, "cannot read none.json: No such file");
    let file = trove.file("a.json", "{\n\"id\": }");
    trove
        .run(&["hunt", "put", &file])
        .fails(2, "is no hunt document: expected value at line 2");
    let file = trove.file("b.json", r#"{"id":"a b"}"#);
    trove
        .run(&["hunt", "put", &file])
        .fails(2, "is no hunt document: may only hold");
}

#[test]
fn the_admin_key_is_taken_from_beside_the_store() {
    let trove = Trove::new();
    trove
        .run(&["hunt", "list"])
        .fails(2, "there is no admin key; set TROVE_ADMIN_KEY");
    let dir = trove.dir.0.join("data");
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("admin.key");
    std::fs::write(&path, "kept-beside-the-store\n").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (url, seen) = tcp_server("200 OK\n{\"hunts\":[]}");
    trove
        .run(&["hunt", "list", "--store", "data", "--server", &url])
        .succeeds();
    assert_eq!(
        seen.recv().unwrap().authorization.as_deref(),
        Some("Bearer kept-beside-the-store")
    );
}
