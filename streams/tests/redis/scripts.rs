//! Scripts that a server knows, forgot, or never saw.

use redis::{Value, cmd};
use trove_streams::{Batch, Clock, Config, Error, ErrorCode, Outcome, Script};

use crate::harness::{Server, connect_with, connected, quick, run, up};

fn append() -> Script {
    Script::new(
        "append-1.lua",
        "return redis.call('RPUSH', KEYS[1], ARGV[1])",
    )
    .unwrap()
}

async fn flush(connection: &trove_streams::Connection) {
    run::<()>(connection, &["SCRIPT", "FLUSH"]).await;
}

async fn calls_of(connection: &trove_streams::Connection, command: &str) -> u64 {
    let stats: String = run(connection, &["INFO", "commandstats"]).await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))
        .unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_script_that_the_server_forgot_is_loaded_and_run_once() {
    let server = Server::start();
    let connection = connected(&server).await;
    let script = append();
    for expected in 1..=2 {
        let reply = connection
            .run(&script.call(&["list"]).arg("a"))
            .await
            .unwrap();
        assert_eq!(reply, Value::Int(expected));
    }
    flush(&connection).await;
    let reply = connection
        .run(&script.call(&["list"]).arg("a"))
        .await
        .unwrap();
    assert_eq!(reply, Value::Int(3));
    assert_eq!(calls_of(&connection, "rpush").await, 3);
}

#[tokio::test]
async fn in_a_batch_only_the_refused_calls_are_sent_again_and_in_their_order() {
    let server = Server::start();
    let connection = connected(&server).await;
    let append = append();
    let other = Script::new(
        "other-1.lua",
        "return redis.call('RPUSH', KEYS[1], 'other ' .. ARGV[1])",
    )
    .unwrap();
    let known = Script::new(
        "known-1.lua",
        "return redis.call('RPUSH', KEYS[1], 'known ' .. ARGV[1])",
    )
    .unwrap();
    flush(&connection).await;
    connection.run(&known.call(&["list"]).arg(0)).await.unwrap();
    let mut push = cmd("RPUSH");
    push.arg("list").arg("plain");
    let batch = Batch::new()
        .call(append.call(&["list"]).arg(1))
        .cmd(push)
        .call(other.call(&["list"]).arg(2))
        .call(known.call(&["list"]).arg(3))
        .call(append.call(&["list"]).arg(4))
        .call(other.call(&["other list"]).arg(5));
    let replies: Vec<_> = connection
        .batch(batch)
        .await
        .unwrap()
        .map(|reply| reply.unwrap())
        .collect();
    assert_eq!(replies, [4, 2, 5, 3, 6, 1].map(Value::Int));
    let list: Vec<String> = run(&connection, &["LRANGE", "list", "0", "-1"]).await;
    assert_eq!(list, ["known 0", "plain", "known 3", "1", "other 2", "4"]);
    assert_eq!(calls_of(&connection, "rpush").await, 7);
    // Before 7.0 all subcommands are counted together: here one SCRIPT FLUSH.
    let loads = calls_of(&connection, "script|load")
        .await
        .max(calls_of(&connection, "script").await.saturating_sub(1));
    assert_eq!(loads, 3, "each script once");
}

#[tokio::test]
async fn a_preloaded_script_is_known_to_each_new_server() {
    let mut server = Server::start();
    let script = append();
    let config = Config {
        preload: vec![script.clone()],
        ..quick()
    };
    let connection = connect_with(&server, config);
    let link = up(&connection).await.link;
    server.start_again();
    crate::harness::next_up(&connection, link).await;
    connection
        .run(&script.call(&["list"]).arg("a"))
        .await
        .unwrap();
    assert_eq!(calls_of(&connection, "evalsha").await, 1);
}

#[tokio::test]
async fn a_wrong_number_of_keys_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let connection = connected(&server).await;
    let script = append();
    let call = script.call(&["a", "b"]).arg("x");
    let refused = connection.run(&call).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::KeyCount {
                expected: 1,
                given: 2,
                ..
            }
        ),
        "{refused:?}"
    );
    let refused = connection
        .batch(Batch::new().cmd(cmd("FLUSHALL")).call(call.clone()))
        .await
        .unwrap_err();
    assert_eq!(refused.outcome(), Outcome::NotExecuted);
    assert_eq!(calls_of(&connection, "flushall").await, 0);
}

#[tokio::test]
async fn a_scripts_errors_keep_their_code() {
    let server = Server::start();
    let connection = connected(&server).await;
    let script = Script::new(
        "refuse-0.lua",
        "return redis.error_reply('EPOCH 7 is not 8')",
    )
    .unwrap();
    let error = connection.run(&script.call::<&str>(&[])).await.unwrap_err();
    let error = error.server().expect("the server answered");
    assert_eq!(error.code, ErrorCode::Other("EPOCH".into()));
    assert_eq!(error.message, "7 is not 8");
    let broken = Script::new("broken-0.lua", "return nothing.at.all").unwrap();
    let error = connection.run(&broken.call::<&str>(&[])).await.unwrap_err();
    assert_eq!(
        error.server().map(|error| &error.code),
        Some(&ErrorCode::Err),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::Failed);
}

#[tokio::test]
async fn a_full_server_refuses_a_write_and_a_script_before_its_first_write() {
    let server = Server::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let connection = connected(&server).await;
    let mut set = cmd("SET");
    set.arg("a").arg(1);
    for error in [
        connection.query(&set).await.unwrap_err(),
        connection
            .run(&append().call(&["list"]).arg(1))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(
            error.server().map(|error| &error.code),
            Some(&ErrorCode::Oom),
            "{error:?}"
        );
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
}

#[tokio::test]
async fn the_time_of_a_script_can_be_given() {
    let server = Server::start();
    let connection = connected(&server).await;
    let source = "local t = redis.call('TIME')\nlocal now = t[1] * 1000 + math.floor(t[2] / 1000) -- @now\nreturn now\n";
    let script = Script::new("now-0.lua", source).unwrap();
    let now = async |script: &Script, args: &[u64]| {
        let reply = connection
            .run(&script.call::<&str>(&[]).arg(args))
            .await
            .unwrap();
        match reply {
            Value::Int(now) => now,
            other => panic!("{other:?}"),
        }
    };
    assert!(now(&script, &[]).await > 1_600_000_000_000);
    let by_argument = script.with_clock(&Clock::LastArgument).unwrap();
    assert_eq!(now(&by_argument, &[1, 2, 42]).await, 42);
    let by_key = script.with_clock(&Clock::Key("test's now".into())).unwrap();
    run::<()>(&connection, &["SET", "test's now", "43"]).await;
    assert_eq!(now(&by_key, &[]).await, 43);
}
