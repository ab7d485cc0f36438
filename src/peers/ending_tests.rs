//! Connections between nodes end with what they rest on: a certificate, its validity, a secret.

use super::*;

#[tokio::test]
async fn a_revoked_certificate_ends_what_it_has_opened_and_opens_nothing_more() {
    let authority = Authority::new("a");
    let node = |id: u64| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = Files::in_directory(directory.path());
        let mut subject = Subject::node("test", id);
        subject.serial = Some(id);
        files.put_certificate(&authority, &subject);
        files.put_authorities(&[&authority]);
        authority.put_list(&files.list, &[7]);
        let trust = by_files(id, &files).expect("good files");
        Proved {
            directory,
            files,
            trust,
        }
    };
    let (one, two, stolen) = (node(1), node(2), node(3));
    let (address, mut at_two) = listen(&two.trust).await;
    let (stolen_address, mut at_stolen) = listen(&stolen.trust).await;
    let mut kept = connect(&one.trust, Some(2), address).await.expect("proved");
    let mut kept_at_two = works(&mut kept, &mut at_two).await.expect("open");
    let mut came = connect(&stolen.trust, Some(2), address)
        .await
        .expect("proved");
    let mut came_at_two = works(&mut came, &mut at_two).await.expect("open");
    let mut went = connect(&two.trust, Some(3), stolen_address)
        .await
        .expect("proved");
    assert!(works(&mut went, &mut at_stolen).await.is_some());
    // A list that is none changes nothing.
    put(
        &two.files.list,
        "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
    );
    assert_eq!(two.trust.reload(), Reload::Failed);
    authority.put_list(&two.files.list, &[3, 7]);
    assert_eq!(two.trust.reload(), Reload::Used);
    assert!(is_closed(&mut came_at_two).await && is_closed(&mut went).await);
    // Whoever serves it drops it then, and the other node hears of it.
    drop(came_at_two);
    assert!(is_closed(&mut came).await);
    if let Ok(mut again) = connect(&stolen.trust, Some(2), address).await {
        assert!(works(&mut again, &mut at_two).await.is_none());
    }
    assert!(connect(&two.trust, Some(3), stolen_address).await.is_err());
    kept.write_all(b"?").await.expect("it is open");
    kept.flush().await.expect("it is open");
    assert_eq!(kept_at_two.read_u8().await.expect("it is open"), b'?');
    // The node itself goes on with what it had, and does not start with it.
    authority.put_list(&stolen.files.list, &[3]);
    assert_eq!(stolen.trust.reload(), Reload::Failed);
    let refused = by_files(3, &stolen.files).map(|_| ()).expect_err("revoked");
    assert!(
        refused.to_string().contains("cluster.crl_files"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_that_it_rests_on() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let mut subject = Subject::node("test", 1);
    subject.valid_for = Some(Duration::from_secs(3));
    one.files.put_certificate(&authority, &subject);
    let short = by_files(1, &one.files).expect("good files");
    let (address, mut at_two) = listen(&two.trust).await;
    let mut kept = connect(&one.trust, Some(2), address).await.expect("proved");
    let mut kept_at_two = works(&mut kept, &mut at_two).await.expect("open");
    let mut ends = connect(&short, Some(2), address).await.expect("proved");
    let mut ends_at_two = works(&mut ends, &mut at_two).await.expect("open");
    // No file changes.
    let watch = tokio::spawn(two.trust.clone().keep_current());
    assert!(is_closed(&mut ends_at_two).await);
    drop(ends_at_two);
    assert!(is_closed(&mut ends).await);
    watch.abort();
    kept.write_all(b"?").await.expect("it is open");
    kept.flush().await.expect("it is open");
    assert_eq!(kept_at_two.read_u8().await.expect("it is open"), b'?');
}

#[tokio::test]
async fn a_secret_that_is_removed_ends_what_it_has_opened() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let (old, new) = (SECRET.to_owned(), SECRET.replace('0', "1"));
    put(&path("one"), &old);
    put(&path("two"), &old);
    let (one, two) = (by_secret(&path("one"), 1), by_secret(&path("two"), 2));
    let (address, mut at_two) = listen(&two).await;
    let mut first = connect(&one, Some(2), address).await.expect("proved");
    let mut first_at_two = works(&mut first, &mut at_two).await.expect("open");
    // The new one is accepted, then shown: nothing ends.
    for text in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n")] {
        for (name, trust) in [("two", &two), ("one", &one)] {
            put(&path(name), &text);
            assert_eq!(trust.reload(), Reload::Used);
        }
    }
    let mut second = connect(&one, Some(2), address).await.expect("proved");
    let mut second_at_two = works(&mut second, &mut at_two).await.expect("open");
    put(&path("two"), &new);
    assert_eq!(two.reload(), Reload::Used);
    assert_eq!(two.counters().ended.load(Relaxed), 1);
    assert!(is_closed(&mut first_at_two).await);
    drop(first_at_two);
    assert!(is_closed(&mut first).await);
    second.write_all(b"?").await.expect("it is open");
    assert_eq!(second_at_two.read_u8().await.expect("it is open"), b'?');
}
