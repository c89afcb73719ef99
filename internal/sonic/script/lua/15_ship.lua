
-- Types that operations (L) change.
local IN_PLACE = {string = true, list = true, stream = true}

-- stored_versions returns what is stored in fields of the hash of versions. The script is in db, and comes back to it.
local function stored_versions(db, ...)
	if db ~= '0' then call('SELECT', '0') end
	local stored = call('HMGET', VERSION_HASH[c.outbox], ...)
	if db ~= '0' then call('SELECT', db) end
	return stored
end

-- base_of returns the version of the write that made what the string, list or stream key holds, with its zone; nil
-- when it is not kept.
local function base_of(db, key)
	return version.base(stored_versions(db, key_field(db, key))[1])
end

-- state_effects returns what makes the key elsewhere what it is here, wholesale: effects, and their
-- versions, added to versions if given. The script's database is db, and its replies are RESP2's. A
-- collection is D and its elements, all under one version: an element needs no version of its own
-- while it has its key's. There are none of a counter: zones share its changes, not its value.
local function state_effects(db, key, versions)
	local policy = policy_of(key)
	if policy == 'c' then return '', versions end
	local kind = call('TYPE', key).ok
	if kind == 'none' then
		return deletion_effect(policy, db, key), wholesale_versions(policy, db, key, '', versions)
	end
	local pxat = expiry_of(key)
	local plain = kind == 'string' and not base_of(db, key) -- else operations go on from it
	versions = wholesale_versions(policy, db, key, pxat, versions, IN_PLACE[kind] and not plain)
	if plain then return string_effect(policy, db, key, call('GET', key), pxat), versions end
	local op, list
	if kind == 'hash' then
		op, list = 'H', call('HGETALL', key)
	elseif kind == 'set' then
		op, list = 'A', call('SMEMBERS', key)
	elseif kind == 'zset' then
		op, list = 'Z', call('ZRANGE', key, '0', '-1', 'WITHSCORES')
		for i = 1, #list, 2 do list[i], list[i + 1] = list[i + 1], list[i] end
	else
		return dump_effect(policy, db, key, call('DUMP', key), pxat), versions
	end
	if pxat ~= '' then versions = expiry_versions(policy, db, key, pxat, versions) end
	return deletion_effect(policy, db, key) .. elements_effect(op, policy, db, key, pxat, list, 1, #list), versions
end
