
-- scores returns the scores of args[i], for i from first in steps, as ZMSCORE gives them; nil when
-- key is of another type.
local function scores(key, args, first, step)
	local members = {}
	for i = first, #args, step do members[#members + 1] = args[i] end
	local found = read_sliced(try, 'ZMSCORE', key, members, 1, #members)
	return not failed(found) and found or nil
end

-- changed_scores returns score, member, .. of the members whose score is not what it was before.
local function changed_scores(key, args, first, step, before)
	local list, n = {}, 0
	local after = scores(key, args, first, step)
	for i = 1, #after do
		if after[i] and after[i] ~= before[i] then
			list[n + 1], list[n + 2] = after[i], args[first + (i - 1) * step]
			n = n + 2
		end
	end
	return list
end

-- run_scored runs ZADD or GEOADD: options before first, groups of step values from there. One too
-- large for a call is cut; a bad number in a later slice must not leave the first ones done, so all
-- are tried before with XX on a key that does not exist, which does nothing but check them.
local function run_scored(command, args, first, step)
	local n = #args
	if n <= SLICE or (n - first + 1) % step ~= 0 then
		if n > MOST_ARGS then return try(command, unpack(args, 2, 4)) end -- a syntax error, too
		return try(command, unpack(args, 2))
	end
	local size = step * math.floor(SLICE / step)
	local lead, trial = {args[2]}, {state(c.outbox, 'none'), 'XX'}
	for i = 3, first - 1 do
		lead[#lead + 1] = args[i]
		local option = string.upper(args[i])
		if option == 'INCR' then return try(command, unpack(args, 2, first + 2 * step - 1)) end -- for its error
	end
	for _, words in ipairs({trial, lead}) do
		local sum = 0
		for start = first, n, size do
			local slice = {unpack(words)}
			for i = start, math.min(start + size - 1, n) do slice[#slice + 1] = args[i] end
			local reply = try(command, unpack(slice))
			if failed(reply) then return reply end
			sum = sum + reply
		end
		if words == lead then return sum end
	end
end

-- ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member ..
local ZADD_OPTIONS = {NX = true, XX = true, GT = true, LT = true, CH = true, INCR = true}

write('ZADD', function(c, args, key, policy)
	local n = #args
	local first, increments_score = 3, false
	while first <= n and ZADD_OPTIONS[string.upper(args[first])] do
		if string.upper(args[first]) == 'INCR' then increments_score = true end
		first = first + 1
	end
	if first == 3 then
		local reply = run_scored('ZADD', args, 3, 2)
		if failed(reply) then return reply end
		return reply, elements_effect('Z', policy, c.db, key, expiry_of(key), args, 3, n),
			added_versions(policy, c.db, key, 'z', args, 4, n, 2)
	end
	local before = first < n and scores(key, args, first + 1, 2) or {}
	local reply = run_scored('ZADD', args, first, 2)
	if not reply or failed(reply) then return reply end
	local list = changed_scores(key, args, first + 1, 2, before)
	if increments_score and c.resp3 then reply = {double = tonumber(reply)} end
	if #list == 0 then return reply end
	return reply, elements_effect('Z', policy, c.db, key, expiry_of(key), list, 1, #list),
		added_versions(policy, c.db, key, 'z', list, 2, #list, 2)
end, {special = true})

write('ZINCRBY', function(c, args, key, policy)
	local member = args[4]
	local reply = run('ZINCRBY', args)
	if failed(reply) then return reply end
	local score = reply
	if c.resp3 then reply = {double = tonumber(score)} end
	if policy == 'c' then return reply, counter_effect('j', c.db, key, member, args[3]) end
	return reply, element_effect('Z', policy, c.db, key, expiry_of(key), score, member),
		added_versions(policy, c.db, key, 'z', args, 4, 4, 1)
end, {counters = true, special = true})

removes('ZREM', 'ZMSCORE', 'z')

-- What a removal of a range removes is read before: its reading takes the same arguments. Redis leaves open what
-- ZREMRANGEBYLEX does to members of different scores: in a skip list the reading may find none of what the removal
-- removes. The key is shipped whole then.
each({
	{'ZREMRANGEBYSCORE', 'ZRANGEBYSCORE'}, {'ZREMRANGEBYRANK', 'ZRANGE'}, {'ZREMRANGEBYLEX', 'ZRANGEBYLEX'},
}, function(command, reading)
	write(command, function(c, args, key, policy)
		local list = #args == 4 and try(reading, key, args[3], args[4])
		local pxat = expiry_of(key)
		local reply = run(command, args)
		if failed(reply) or reply == 0 then return reply end
		if reply ~= #list then return reply, state_effects(c.db, key) end
		return reply, removal_effect('z', policy, c.db, key, pxat, list, 1, #list)
	end, {frees = true})
end)

-- ZPOPMIN key [count]. RESP3's reply with a count is a list of pairs.
each({'ZPOPMIN', 'ZPOPMAX'}, function(command)
	write(command, function(c, args, key, policy)
		local pxat = expiry_of(key)
		local reply = run(command, args)
		if failed(reply) then return reply end
		local list, pairs_of = {}, {}
		for i = 1, #reply, 2 do
			list[#list + 1] = reply[i]
			pairs_of[#pairs_of + 1] = {reply[i], {double = tonumber(reply[i + 1])}}
		end
		if #list == 0 then return reply end
		if c.resp3 then reply = #args == 2 and pairs_of[1] or pairs_of end
		return reply, removal_effect('z', policy, c.db, key, pxat, list, 1, #list)
	end, {special = true, frees = true})
end)

-- last_of_keys returns the last index of the keys behind their number, args[at].
local function last_of_keys(args, at)
	local count = tonumber(args[at])
	if not count or count < 1 or count > #args - at then return at end
	return at + count
end

-- ZMPOP numkeys key .. MIN|MAX [COUNT n]; BZMPOP has a timeout before that, and does not wait in a function.
each({{'ZMPOP', 2}, {'BZMPOP', 3}}, function(command, at)
	write(command, function(c, args)
		local pxat -- of the first key that exists
		for i = at + 1, last_of_keys(args, at) do
			if policy_of(args[i]) == 'c' then return counter_refusal(command) end
			pxat = pxat or expiry_of(args[i])
		end
		local reply = run(command, args)
		if not reply or failed(reply) then return reply end
		local key, list = reply[1], {}
		for i, pair in ipairs(reply[2]) do
			list[i] = pair[1]
			if c.resp3 then pair[2] = {double = tonumber(pair[2])} end
		end
		return reply, removal_effect('z', policy_of(key), c.db, key, pxat, list, 1, #list)
	end, {counters = true, special = true, frees = true})
end)

each({'ZUNIONSTORE', 'ZINTERSTORE', 'ZDIFFSTORE', 'ZRANGESTORE'}, function(command)
	write(command, function(_, args) return stored(command, args, args[2]) end)
end)
