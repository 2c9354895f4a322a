package gateway.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/** Which offsets to read: from options and what the log holds to ranges. */
final class Planning {
  private Planning() {}

  /** The topics that the options mean. A name that there is not is an error, if all of them have to be there. */
  static List<Log.Topic> selected(Map<String, Log.Topic> topics, Options options, boolean allNamed) {
    TreeSet<String> missing = new TreeSet<>(options.topics.named());
    missing.removeAll(topics.keySet());
    if (allNamed && !missing.isEmpty())
      throw new UnknownTopic("there is no topic " + String.join(", ", missing) + " in " + options.source);
    List<Log.Topic> found = new ArrayList<>();
    for (Log.Topic topic : topics.values()) {
      if (!options.topics.has(topic.name)) continue;
      if (options.topics.only != null && options.topics.only.containsKey(topic.name))
        for (int number : options.topics.only.get(topic.name)) there("assign", topic, number);
      found.add(topic);
    }
    return found;
  }

  private static void there(String option, Log.Topic topic, int number) {
    if (number >= topic.partitions.size())
      throw new UnknownPartition(
          option + ": " + topic.name + " has partitions 0 to " + (topic.partitions.size() - 1) + ", not " + number);
  }

  /** The partitions of a topic that are meant, with the offset that an option means in each. */
  static List<long[]> places(Log log, Log.Topic topic, Options options, Options.Where where, boolean beginning) throws IOException {
    String option = beginning ? "startingOffsets" : "endingOffsets";
    Map<Integer, Long> named = where.named.getOrDefault(topic.name, Map.of());
    for (int number : named.keySet()) there(option, topic, number);
    List<long[]> found = new ArrayList<>();
    for (Log.Partition one : topic.partitions) {
      if (!options.topics.has(topic.name, one.number)) continue;
      boolean told = named.containsKey(one.number);
      long offset = told ? named.get(one.number) : where.all;
      if (where.times && (told || where.named.isEmpty())) {
        long time = offset;
        offset = log.offsetForTime(topic.name, one.number, time);
        if (beginning && options.strictTimes && offset >= one.end)
          throw new OffsetOutOfRange(
              topic.name + "/" + one.number + " has nothing from " + time + " ms on (startingOffsetsByTimestampStrategy)", one.end);
      } else if (offset == Options.EARLIEST) {
        offset = one.start;
      } else if (offset == Options.LATEST) {
        offset = one.end;
      } else if (offset > one.end) {
        throw new OffsetOutOfRange(
            option + ": " + topic.name + "/" + one.number + " ends at " + one.end + ", before " + offset, one.start);
      }
      found.add(new long[] {one.number, offset});
    }
    return found;
  }

  static List<Range> whole(Log log, Options options) throws IOException {
    List<Range> found = new ArrayList<>();
    Options.Where starting = options.starting == null ? Options.Where.FIRST : options.starting;
    for (Log.Topic topic : selected(log.topics(options.topics::has), options, true)) {
      List<long[]> starts = places(log, topic, options, starting, true);
      List<long[]> ends = places(log, topic, options, options.ending, false);
      for (int i = 0; i < starts.size(); i++) {
        int number = (int) starts.get(i)[0];
        Range range = new Range(topic.name, number, starts.get(i)[1], ends.get(i)[1], topic.epoch);
        if (!range.empty()) found.add(range);
      }
    }
    return found;
  }

  /** Store time of a record. */
  static long timeAt(Log log, Range range, long offset) throws IOException {
    try (Log.Chunks chunks = log.read(range.within(offset, offset + 1))) {
      Log.Stored stored = chunks.next();
      if (stored == null || offset < stored.base || offset >= stored.base + stored.count)
        throw new CorruptChunk(range.topic, range.partition, offset, offset + 1);
      return Chunk.checked(stored, range.topic, range.partition).time((int) (offset - stored.base));
    }
  }
}
