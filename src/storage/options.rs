//! RocksDB's settings, each with its reason.

use std::num::NonZero;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, LogLevel, Options,
};

/// Memory of blocks of `state/`, bytes.
const STATE_CACHE: usize = 128 << 20;

/// A full memtable of `state/`, which becomes a file of level 0, bytes.
const STATE_MEMTABLE: usize = 64 << 20;

/// Bytes that RocksDB sets aside for a manifest (its default). Most tests keep their files in memory, where the system
/// writes zeros to all of that.
const MANIFEST: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };

fn common() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    // RocksDB's own LOG is for its developers; ours names what matters.
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_background_jobs(2);
    options.set_manifest_preallocation_size(MANIFEST);
    // Files that are written in the background reach the disk bit by bit. Otherwise the sync that ends one of them is a
    // burst of many megabytes, and the syncs of the log wait behind it.
    options.set_bytes_per_sync(1 << 20);
    options
}

/// Bytes of level 1 of a state on a volume of this size. What is compacted out of level 0 and level 1 is there twice
/// until that has ended, so it is a small part of the volume.
fn level_base(volume_bytes: u64) -> u64 {
    (volume_bytes / 32).clamp(256 << 20, 1 << 30)
}

/// The applied state on a volume of this size: no WAL, many small rows, point reads and short scans.
pub fn state(volume_bytes: u64) -> Options {
    let mut options = common();
    let mut table = BlockBasedOptions::default();
    // Apply, readers and compaction look blocks up, several for each row: without a lock, and without a list that each
    // look-up changes.
    table.set_block_cache(&Cache::new_hyper_clock_cache(STATE_CACHE, 0));
    table.set_bloom_filter(10.0, false);
    // RocksDB's default is 4 KiB: seven rows of half a kilobyte. Compaction looks up, checks and indexes each block:
    // with blocks of 16 KiB it takes two thirds of the processor time.
    table.set_block_size(16 << 10);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // A file's whole index is some hundred kilobytes: files would push each other's out of the cache, and every read of
    // a row would load and decompress one. So it is cached in pieces.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(4 << 10);
    table.set_pin_top_level_index_and_filter(true);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(STATE_MEMTABLE);
    // Apply reads rows that commands replace, and most rows are in no memtable: a filter of 1.3 MiB, some ten bits
    // for each row that a memtable holds, spares the search of each memtable's skip list.
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.02);
    // Compaction that falls behind must not stop apply: a write of a whole memtable (some 8 MiB) that RocksDB slows to
    // its default of 16 MiB/s takes half a second, and every client waits for it. So there is room for bursts, more
    // threads work the backlog off, and the brake is a gentle one.
    options.set_max_write_buffer_number(6);
    // But they take no more processors than there are: apply and clients need them, too.
    let processors = std::thread::available_parallelism().map_or(2, NonZero::get);
    options.set_max_background_jobs(if processors < 4 { 2 } else { 4 });
    options.set_max_subcompactions(if processors < 4 { 1 } else { 2 });
    options.set_level_zero_slowdown_writes_trigger(48);
    options.set_level_zero_stop_writes_trigger(96);
    // Bytes of compaction and flushes in a second: a rate that leaves the log its share of a disk, and the rate of the
    // brake, too. It is far above what a node writes.
    options.set_ratelimiter(256 << 20, 100_000, 10);
    // Level 0 gathers about as much as level 1 holds, so that each byte is rewritten about once on its way down; and
    // the larger that is, the fewer levels there are to go down. A file is about half of its memtable. But a look-up of
    // a row asks the filter of each file of level 0, and a scan looks into each.
    let base = level_base(volume_bytes);
    let files = (base / (STATE_MEMTABLE as u64 / 2)).min(28);
    options.set_level_zero_file_num_compaction_trigger(files as i32);
    options.set_max_bytes_for_level_base(base);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_compression_type(DBCompressionType::Lz4);
    // A scan passes every tombstone on its way, so a file that is half tombstones, or has them in a long run, is
    // compacted before its turn. But each such file is merged with all that its rows overlap, and what a load of SETs
    // leaves behind (timers, old replies) are runs of some ten thousand in every file: those wait for their turn.
    options.add_compact_on_deletion_collector_factory(48 << 10, 24 << 10, 0.5);
    options
}

/// Sets what RocksDB's bindings set of open databases only.
pub fn set_of_open_state(db: &DB) -> Result<(), rocksdb::Error> {
    // A file of the last level that was written while there was a snapshot may hold rows that only that one needed, and
    // would be written anew as soon as it goes. Under a load the next compaction does so anyway.
    db.set_options(&[("bottommost_file_compaction_delay", "600")])
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rocksdb::WriteOptions;

    use super::*;

    /// A state with one file of level 0: `rows` rows, and after them `tombstones` in a run.
    fn one_file(path: &Path, rows: u32, tombstones: u32) -> DB {
        let db = DB::open(&state(0), path).expect("an empty directory");
        set_of_open_state(&db).expect("RocksDB knows the option");
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        for row in 0..rows {
            db.put_opt(row.to_be_bytes(), b"row", &write).expect("put");
        }
        for row in rows..rows + tombstones {
            db.delete_opt(row.to_be_bytes(), &write).expect("delete");
        }
        db.flush().expect("flush");
        db
    }

    fn number(db: &DB, property: &str) -> u64 {
        let found = db.property_int_value(property).expect("a property");
        found.expect("RocksDB has it")
    }

    #[test]
    fn what_a_load_of_sets_deletes_waits_for_the_turn_of_its_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let db = one_file(dir.path(), 100_000, 13_000);
        for property in ["compaction-pending", "num-running-compactions"] {
            assert_eq!(number(&db, &format!("rocksdb.{property}")), 0, "{property}");
        }
        assert_eq!(number(&db, "rocksdb.num-files-at-level0"), 1);
    }

    #[test]
    fn a_file_of_tombstones_is_compacted_before_its_turn() {
        for (rows, tombstones) in [(200_000, 25_000), (4_000, 5_000)] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let db = one_file(dir.path(), rows, tombstones);
            let deadline = Instant::now() + Duration::from_secs(60);
            while number(&db, "rocksdb.num-files-at-level0") > 0 {
                assert!(Instant::now() < deadline, "{tombstones} of {rows} stay");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_compaction_is_a_small_part_of_the_volume() {
        assert_eq!(level_base(0), 256 << 20);
        assert_eq!(level_base(16 << 30), 512 << 20);
        assert_eq!(level_base(u64::MAX), 1 << 30);
    }
}
