// What a candidate counts on its way to lead an epoch.
#include <doctest/doctest.h>

#include <tidelock/replication/candidacy.h>

using namespace tidelock;

TEST_SUITE_BEGIN("replication/candidacy");

TEST_CASE("a promise counts once its link has echoed, and as long as the link lasts") {
  Candidacy candidacy(Quorum{4, 2}, false);
  CHECK(candidacy.needed() == 3);
  candidacy.would(2);
  CHECK_FALSE(candidacy.enough_would());
  candidacy.would(3);
  CHECK(candidacy.enough_would());
  CHECK_FALSE(candidacy.enough_promised());
  candidacy.promised(2, {{3, 1}, Lsn{9}}, 2);
  candidacy.confirmed(2, candidacy.round());  // before there are enough
  candidacy.promised(4, {{4, 1}, Lsn{5}}, 2);
  CHECK(candidacy.enough_promised());
  candidacy.confirmed(2, candidacy.round());
  candidacy.confirmed(3, candidacy.round());  // it would have, but did not promise
  CHECK_FALSE(candidacy.enough_confirmed());
  candidacy.confirmed(4, candidacy.round());
  CHECK(candidacy.enough_confirmed());
  CHECK(candidacy.donor({{3, 1}, Lsn{20}}) == 4U);  // a later epoch, though a smaller LSN
  CHECK(candidacy.donor({{4, 1}, Lsn{4}}) == 4U);
  CHECK_FALSE(candidacy.donor({{4, 1}, Lsn{5}}));
  candidacy.lost(4);
  CHECK_FALSE(candidacy.enough_confirmed());
}

TEST_CASE("with each promise the confirmations begin anew") {
  Candidacy candidacy(Quorum{4, 2}, false);
  candidacy.promised(2, {}, 2);
  candidacy.promised(3, {}, 2);
  const auto round = candidacy.round();
  candidacy.confirmed(3, round);
  candidacy.lost(2);
  candidacy.promised(4, {}, 2);
  candidacy.confirmed(4, candidacy.round());
  CHECK_FALSE(candidacy.enough_confirmed());  // 3 may have restarted since
  candidacy.confirmed(3, round);              // an echo of a stamp from before
  CHECK_FALSE(candidacy.enough_confirmed());
  candidacy.confirmed(3, candidacy.round());
  CHECK(candidacy.enough_confirmed());
}

TEST_CASE("who names a smaller c makes it take more promises") {
  Candidacy candidacy(Quorum{4, 2}, false);
  candidacy.promised(2, {}, 2);
  candidacy.promised(3, {}, 1);
  CHECK(candidacy.c() == 1);
  CHECK(candidacy.needed() == 4);
  CHECK_FALSE(candidacy.enough_promised());
  candidacy.promised(4, {}, 2);
  CHECK(candidacy.enough_promised());
}

TEST_CASE("a founding takes all promises") {
  CHECK(Candidacy(Quorum{4, 2}, true).needed() == 5);
  CHECK(Candidacy(Quorum{2, 0}, true).needed() == 3);
}

TEST_SUITE_END();
