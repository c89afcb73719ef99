
-- GEOADD key [NX|XX] [CH] longitude latitude member ..: places are members of a sorted set.
write('GEOADD', function(c, args, key, policy)
	local n = #args
	local first = 3
	while first <= n and ZADD_OPTIONS[string.upper(args[first])] do first = first + 1 end
	local whole = (n - first + 1) % 3 == 0 and n >= first + 2
	local before = whole and first > 3 and scores(key, args, first + 2, 3) or {}
	local reply = run_scored('GEOADD', args, first, 3)
	if failed(reply) then return reply end
	local list = changed_scores(key, args, first + 2, 3, before)
	if #list == 0 then return reply end
	return reply, elements_effect('Z', policy, c.db, key, expiry_of(key), list, 1, #list),
		added_versions(policy, c.db, key, 'z', list, 2, #list, 2)
end)

-- GEORADIUS and GEORADIUSBYMEMBER write with STORE key or STOREDIST key; the last one given counts.
each({{'GEORADIUS', 7}, {'GEORADIUSBYMEMBER', 6}}, function(command, first)
	write(command, function(_, args)
		return stored(command, args, store_key(args, first, {COUNT = 1}))
	end, {counters = true})
end)

write('GEOSEARCHSTORE', function(_, args) return stored('GEOSEARCHSTORE', args, args[2]) end)
